"""This module computes LPIPS v0.1 with AlexNet, from weights in the package."""

from __future__ import annotations

from functools import cache
from importlib import resources

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor

from softleak.errors import DataError

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
    """Return the perceptual distance of two images; 0 means equal.

    Args:
        image: the reconstruction (3, H, W), pixels in [0, 1]; values beyond are clamped.
        truth: the true image, of the same shape.
    """
    if image.shape != truth.shape or image.ndim != 3 or image.shape[0] != 3:
        raise DataError(
            f"expected two images (3, H, W) of one shape, got {tuple(image.shape)} and "
            f"{tuple(truth.shape)}"
        )
    if min(image.shape[1:]) < SMALLEST_SIDE:
        raise DataError(
            f"expected at least {SMALLEST_SIDE} pixels per side, got {tuple(image.shape[1:])}"
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
    folder = resources.files("softleak.metrics").joinpath("weights")
    stored = safetensors.torch.load(folder.joinpath("lpips_alex.safetensors").read_bytes())
    return {name: tensor.float() for name, tensor in stored.items()}
