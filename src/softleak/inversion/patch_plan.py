"""Where the gradient tells every patch of an image, found by running the model.

A vision transformer cuts an image into N patches ``X`` (N, K), projects them by a weight ``W``
(d, K) and adds a learned position ``P`` to each. With ``Δ = ∂L/∂P`` (N, d) the gradient of the
weight is ``∂L/∂W = Δᵀ X``. No names are consulted: a weight and a parameter are a plan if this
equation holds on images that are known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softleak.core.client import capture
from softleak.core.errors import ModelError, SoftleakError, in_a_line
from softleak.core.forward import forward_one, random_tensor, seeded
from softleak.core.input_spec import Shape
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.numerics.recorder import recorded_inputs

DIGIT_BASE = 128  # every number format holds such integers exactly
OUTSIDE = -1  # the number of a place that holds no pixel, such as padding
RUNS = 2  # random images that the equation is tried on
TOLERANCE = 64.0  # what may remain of the weight's gradient, in units of the rounding of a sum
SEED = 0  # of the images


def pixel_layers(model: nn.Module, shape: Shape) -> Iterator[tuple[str, Tensor]]:
    """Yield each linear layer or convolution that reads patches of the image, by name.

    With it comes the number (N, K) of the pixel behind each entry of each of its N patches, in
    the order of the columns of its weight (d, K).
    """
    readers: dict[str, nn.Module] = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        or (
            isinstance(module, nn.Conv2d)
            and module.groups == 1
            and module.padding_mode == "zeros"
            and not isinstance(module.padding, str)
        )
    }
    places = math.prod(shape)
    digits = max(math.ceil(math.log(max(places, 2), DIGIT_BASE)), 1)
    numbered = torch.arange(places).reshape(shape)
    seen = [
        _entering(model, readers, (numbered // DIGIT_BASE**place % DIGIT_BASE).double())
        for place in range(digits)
    ]
    for name, module in readers.items():
        if not all(name in run for run in seen):
            continue
        numbers = sum(run[name].double() * DIGIT_BASE**k for k, run in enumerate(seen))
        assert isinstance(numbers, Tensor)
        if _are_pixels(numbers, [run[name] for run in seen], places):
            patches = _patches(module, numbers)
            if len(patches) > 1:
                yield name, patches


def _entering(model: nn.Module, layers: dict[str, nn.Module], x: Tensor) -> dict[str, Tensor]:
    """Return the input of each layer that was called once."""
    try:
        with torch.no_grad(), recorded_inputs(model, *layers) as seen:
            forward_one(model, x)
    except ModelError:
        return {}
    return {name: calls[0] for name, calls in seen.items() if len(calls) == 1}


def _are_pixels(numbers: Tensor, digits: list[Tensor], places: int) -> bool:
    """Return whether a layer's input shows pixels and nothing else, and each of them."""
    whole = all(bool(((d == d.round()) & (d >= 0) & (d < DIGIT_BASE)).all()) for d in digits)
    if not whole or numbers.max() >= places:
        return False
    return int(torch.unique(numbers.long()).numel()) == places


def _patches(module: nn.Module, numbers: Tensor) -> Tensor:
    """Return the pixels (N, K) that enter each of the N products of a layer."""
    if isinstance(module, nn.Linear):
        return numbers.reshape(-1, numbers.shape[-1]).long()
    assert isinstance(module, nn.Conv2d)
    assert not isinstance(module.padding, str)
    # Padding becomes the number 0 of a pixel, so numbers are shifted by one and back.
    columns = F.unfold(
        numbers + 1, module.kernel_size, module.dilation, module.padding, module.stride
    )
    return columns[0].T.long() + OUTSIDE


@dataclass(frozen=True, eq=False)
class PatchPlan:
    """Which gradients tell the patches of an image, and where its pixels are."""

    weight: str  # the name of the patch projection's weight
    positions: str  # the name of the parameter that is added to the projected patches
    # The row of ``positions`` that belongs to the first patch; class, distillation and register
    # tokens stand before it or behind the last.
    first: int
    factor: float  # what the positions are multiplied by before they are added
    pixels: Tensor  # (N, K) the number of the pixel behind each entry of each patch, −1 for padding
    shape: Shape  # the shape of the image

    def read(self, gradients: GradientShare) -> tuple[Tensor, Tensor]:
        """Return ``Δ`` (N, d) and ``∂L/∂W`` (d, K) of a share, in float64."""
        G = gradients[self.weight].double().flatten(1)
        rows = _rows(gradients[self.positions].double(), len(G))
        assert rows is not None
        return rows[self.first : self.first + len(self.pixels)] / self.factor, G


class Lacks(Enum):
    """What a model lacks for its embeddings to tell its input."""

    SHAPE = "one tensor of real numbers as its input"
    POSITIONS = "a learned position for each patch"
    EQUATION = "positions that are added to projected patches"
    RUN = "a run on random images"


@dataclass(frozen=True)
class NoPlan:
    """Why the embeddings of a model do not tell its input."""

    reason: str
    lacks: Lacks = Lacks.RUN


def patch_plan(subject: Subject) -> PatchPlan | NoPlan:
    """Return where a subject's gradients tell the patches of an image, or why nowhere."""
    shape = subject.tensor_shape
    if shape is None:
        return NoPlan("the input is not one tensor of real numbers of a known shape", Lacks.SHAPE)
    added = _addable(subject.model)
    if not added:
        return NoPlan(
            "the model has no learned position of its own for each patch", Lacks.POSITIONS
        )
    try:
        found = next(_plans(subject.model, shape, added), None)
    except SoftleakError as error:
        return NoPlan(str(error))
    except Exception as error:  # the model's own code may raise anything
        return NoPlan(f"the model cannot be probed: {in_a_line(error)}")
    return found or NoPlan(
        "no parameter that the model learns is added to projected patches of the image, so the "
        "gradient at each patch is not sent by itself (positions may be fixed, relative or "
        "resized)",
        Lacks.EQUATION,
    )


def _addable(model: nn.Module) -> list[str]:
    """Return the parameters that may hold positions: those of no layer, and rows of tables."""
    tables = [name for name, m in model.named_modules() if isinstance(m, nn.Embedding)]
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    layers = nn.Linear | nn.Embedding | nn.modules.conv._ConvNd | nn.MultiheadAttention
    wide = [n for n, p in trained.items() if p.ndim > 1]
    free = [n for n in wide if not isinstance(model.get_submodule(n.rpartition(".")[0]), layers)]
    return free + [f"{name}.weight" for name in tables if f"{name}.weight" in trained]


def _plans(model: nn.Module, shape: Shape, added: list[str]) -> Iterator[PatchPlan]:
    """Yield the plans that hold on random images."""
    layers = list(pixel_layers(model, shape))
    if not layers:
        return
    generator = torch.Generator().manual_seed(SEED)
    images = [random_tensor(shape, i, generator) for i in range(RUNS)]
    with seeded(SEED, next(model.parameters())):
        shares = [capture(model, x, i % 2) for i, x in enumerate(images)]
    for name, pixels in layers:
        for positions in added:
            plan = _plan(f"{name}.weight", positions, pixels, shape, (images, shares))
            if plan is not None:
                yield plan


def _plan(
    weight: str, positions: str, pixels: Tensor, shape: Shape,
    known: tuple[list[Tensor], list[GradientShare]],
) -> PatchPlan | None:  # fmt: skip
    """Return the plan of two parameters if its equation holds on every known image."""
    images, shares = known
    if not all(weight in share and positions in share for share in shares):
        return None
    width, count = len(shares[0][weight]), len(pixels)
    rows = _rows(shares[0][positions], width)
    if rows is None:
        return None
    for first in range(len(rows) - count + 1):
        plan = PatchPlan(weight, positions, first, 1.0, pixels, shape)
        factors = [_factor(plan, x, share) for x, share in zip(images, shares, strict=True)]
        if all(abs(one / factors[0] - 1) < 1e-3 for one in factors if factors[0]) and all(factors):
            factor = 1.0 if abs(factors[0] - 1) < 1e-4 else 1 / factors[0]
            return replace(plan, factor=factor)
    return None


def _factor(plan: PatchPlan, x: Tensor, share: GradientShare) -> float:
    """Return c with ``∂L/∂W = c Δᵀ X``; 0 if there is none."""
    delta, G = plan.read(share)
    patches = patches_of(x.to(G), plan.pixels)
    made = delta.T @ patches
    size = float(made.square().sum())
    c = float((made * G).sum()) / size if size else 0.0
    eps = torch.finfo(share[plan.weight].dtype).eps
    sizes = (abs(c) * (delta.abs().T @ patches.abs())).norm()
    return c if (G - c * made).norm() <= TOLERANCE * eps * sizes else 0.0


def patches_of(x: Tensor, pixels: Tensor) -> Tensor:
    """Return the patches (N, K) of an image; padding is zero."""
    values: Tensor = torch.where(
        pixels == OUTSIDE, 0.0, x.flatten()[pixels.to(x.device).clamp_min(0)]
    )
    return values


def _rows(held: Tensor, width: int) -> Tensor | None:
    """Return a parameter as rows (T, d) of this width, if its shape allows; else None."""
    if held.shape[-1] == width:
        return held.reshape(-1, width)
    if held.ndim > 2 and held.shape[:2] == (1, width):  # a map of positions
        return held[0].flatten(1).T
    return None
