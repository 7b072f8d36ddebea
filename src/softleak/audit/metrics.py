"""Score answers by the truth, which is read after they were given."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from importlib import resources
from os import PathLike
from pathlib import Path

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor

from softleak import io as tensor_files
from softleak.audit.report import InputFinding, Score
from softleak.core.errors import DataError, import_extra
from softleak.core.input_spec import Layout, Normalisation, normalisation_of
from softleak.core.results import Recovery

__all__ = [
    "distance_to_set",
    "label_error",
    "lpips",
    "paired_psnr",
    "pairing",
    "psnr",
    "same_bits",
    "ssim",
]


LEAST_SQUARED_ERROR = 1e-30  # so that 300 dB stand for no error at all


def psnr(image: Tensor, truth: Tensor) -> float:
    """Return the PSNR in dB of pixels in [0, 1], clamped, computed in float64."""
    if image.shape != truth.shape:
        raise DataError(f"expected two images of one shape, got {image.shape} and {truth.shape}")
    off = image.double().clamp(0, 1) - truth.to(image.device).double().clamp(0, 1)
    return -10 * math.log10(float(off.square().mean()) + LEAST_SQUARED_ERROR)


def same_bits(found: Tensor, truth: Tensor) -> bool:
    """Return whether an input equals the true one in every bit of the true one's precision."""
    return torch.equal(found.to(truth).view_as(truth), truth)


def ssim(image: Tensor, truth: Tensor) -> float:
    """Return the structural similarity of images (C, H, W), by scikit-image (extra `metrics`)."""
    metrics = import_extra("skimage.metrics", "structural similarity needs scikit-image", "metrics")
    a, b = (entry.detach().cpu().double().clamp(0, 1).numpy() for entry in (image, truth))
    return float(metrics.structural_similarity(a, b, channel_axis=0, data_range=1.0))


PARABOLA_POINTS = 257  # of the path through the ends and the middle of an interval
LEAST_STEP_SQUARED = 1e-300  # keeps a step of no length from dividing by zero


def label_error(recovery: Recovery, y_true: Tensor) -> float:
    """Return ``‖y − y_true‖₁``, or infinity if no label was recovered."""
    if recovery.label is None:
        return float("inf")
    return float((recovery.label - y_true.to(recovery.label)).abs().sum())


def distance_to_set(recovery: Recovery, y_true: Tensor) -> float:
    """Return the L1 distance of the true label from the labels that fit, else infinity."""
    distances = [_to_path(c.labels, y_true.to(c.labels)) for c in recovery.solutions]
    return min(distances, default=float("inf"))


def _to_path(labels: Tensor, y: Tensor) -> float:
    """Return the L1 distance of ``y`` (C,) from the path through ``labels`` (S, C)."""
    if len(labels) == 1:
        return float((labels[0] - y).abs().sum())
    path = _bent(labels) if len(labels) == 3 else labels
    start, way = path[:-1], path.diff(dim=0)
    along = ((y - start) * way).sum(-1) / way.square().sum(-1).clamp_min(LEAST_STEP_SQUARED)
    nearest = start + along.clamp(0, 1)[:, None] * way
    return float((nearest - y).abs().sum(-1).min())


def _bent(labels: Tensor) -> Tensor:
    """Return points on the parabola through three labels: ends and middle of an interval."""
    s = torch.linspace(0, 2, PARABOLA_POINTS, dtype=labels.dtype, device=labels.device)[:, None]
    first, middle, last = labels
    path: Tensor = first * (s - 1) * (s - 2) / 2 - middle * s * (s - 2) + last * s * (s - 1) / 2
    return path


# Of each convolution: its name, stride, padding, and whether a max-pooling comes before it.
ALEXNET_LAYERS = (
    ("features.0", 4, 2, False),
    ("features.3", 1, 2, True),
    ("features.6", 1, 1, True),
    ("features.8", 1, 1, False),
    ("features.10", 1, 1, False),
)
SMALLEST_SIDE = 31  # pixels per side, which the second pooling needs
NORM_OFFSET = 1e-10  # added to norms, as LPIPS does


def lpips(image: Tensor, truth: Tensor) -> float:
    """Return the perceptual distance of two images (3, H, W), clamped; 0 means equal."""
    shapes = tuple(image.shape), tuple(truth.shape)
    alike = shapes[0] == shapes[1] and image.ndim == 3 and image.shape[0] == 3
    if not alike or min(image.shape[1:]) < SMALLEST_SIDE:
        raise DataError(
            f"expected two images (3, H, W) of one shape with at least {SMALLEST_SIDE} pixels per "
            f"side, got {shapes[0]} and {shapes[1]}"
        )
    pair = torch.stack([image, truth.to(image.device)]).float().clamp(0, 1)
    weights = {name: tensor.to(image.device) for name, tensor in _weights().items()}
    with torch.no_grad():
        x = (2 * pair - 1 - weights["shift"].view(-1, 1, 1)) / weights["scale"].view(-1, 1, 1)
        distance = 0.0
        for number, (name, stride, padding, pooled) in enumerate(ALEXNET_LAYERS):
            x = F.max_pool2d(x, 3, 2) if pooled else x
            kernel, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
            x = F.relu(F.conv2d(x, kernel, bias, stride, padding))
            unit = x / (x.norm(dim=1, keepdim=True) + NORM_OFFSET)
            apart = (unit[0] - unit[1]).square()[None]
            distance += float(F.conv2d(apart, weights[f"lin{number}.weight"]).mean())
    return distance


@cache
def _weights() -> dict[str, Tensor]:
    folder = resources.files("softleak.audit").joinpath("weights")
    stored = safetensors.torch.load(folder.joinpath("lpips_alex.safetensors").read_bytes())
    return {name: tensor.float() for name, tensor in stored.items()}


def pairing(cost: Tensor) -> list[int]:
    """Return the column of each row of costs (N, M) so that their sum is least; N is at most M."""
    rows, columns = cost.shape if cost.ndim == 2 else (1, 0)
    if rows > columns or not bool(cost.isfinite().all()):
        raise DataError(
            f"expected finite costs (N, M) with N at most M, got shape {tuple(cost.shape)}"
        )
    from scipy.optimize import linear_sum_assignment  # slow to import

    columns_of_rows = linear_sum_assignment(cost.detach().cpu().double().numpy())[1]
    return [int(column) for column in columns_of_rows]


def paired_psnr(images: Tensor, truths: Tensor) -> list[float]:
    """Return the PSNR in dB of each true image (N, …), paired with (M, …) for the largest sum."""
    table = [[psnr(image, truth) for image in images] for truth in truths]
    columns = pairing(-torch.tensor(table, dtype=torch.double).reshape(len(truths), len(images)))
    return [row[column] for row, column in zip(table, columns, strict=True)]


@dataclass(frozen=True, eq=False)
class Truth:
    """The label, soft or as an index, and the input as the model saw it, if known."""

    label: Tensor | None = None
    input: Tensor | None = None

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Truth:
        """Read a file of tensors named ``label`` and ``input``, in the formats of a share."""
        held = tensor_files.load(Path(path)).tensors
        if not held.keys() & {"label", "input"}:
            raise DataError(
                f"expected tensors named 'label' or 'input' in {Path(path).name}, found "
                f"{', '.join(sorted(held)[:6])}"
            )
        return cls(held.get("label"), held.get("input"))

    def save(self, path: str | PathLike[str]) -> None:
        """Write a file that ``load`` reads."""
        held = {"label": self.label, "input": self.input}
        kept = {k: v for k, v in held.items() if v is not None}
        tensor_files.save(Path(path), tensor_files.Content(kept))

    def fitted(self, classes: int, input_shape: Layout | None) -> Truth:
        """Return this truth with a label and the model's input shape; raise if it does not."""
        label = None if self.label is None else _soft(self.label, classes)
        given = self.input
        if given is None or not isinstance(input_shape, tuple):
            return Truth(label, given)
        if given.numel() != math.prod(input_shape):
            raise DataError(
                f"the true input is {tuple(given.shape)}, the model takes {input_shape}"
            )
        return Truth(label, given.reshape(input_shape))

    def score(
        self, recovery: Recovery, found: InputFinding, normalisation: Normalisation | None
    ) -> Score:
        """Return how far the answers are from this truth, which was ``fitted``."""
        pixels, psnr_found, tokens, right = None, None, (), None
        if self.input is not None and not self.input.is_floating_point():
            tokens = tuple(self.input.flatten().tolist())
            if found.text is not None and tokens:
                told = {place.position: place.token for place in found.text.places}
                right = sum(told.get(i) == token for i, token in enumerate(tokens)) / len(tokens)
        elif self.input is not None:
            pixels = (found.to_pixels or normalisation_of(self.input, normalisation)).pixels(
                self.input
            )
            psnr_found = None if found.pixels is None else psnr(found.pixels, pixels)
        return Score(
            self.label,
            None if self.label is None else label_error(recovery, self.label),
            None if self.label is None else distance_to_set(recovery, self.label),
            pixels, psnr_found, tokens, right,
        )  # fmt: skip


def _soft(label: Tensor, classes: int) -> Tensor:
    """Return a class index as a one-hot label."""
    if label.numel() == 1 and classes > 1:
        if not 0 <= int(label) < classes:
            raise DataError(f"the true class is {int(label)}, the model has {classes}")
        return F.one_hot(label.reshape(()).long(), classes).to(torch.double)
    if label.numel() != classes:
        raise DataError(f"the true label has {label.numel()} entries, the model {classes} classes")
    return label.double().flatten()
