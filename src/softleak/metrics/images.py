"""Scores of a reconstructed image against the true one, for pixels of range one, clamped."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from softleak.errors import DataError, MissingExtra

FLOOR = 1e-30  # of a squared error: 300 dB stand for no error at all


def psnr(image: Tensor, truth: Tensor) -> float:
    """The peak signal-to-noise ratio in dB of pixels in [0, 1], computed in float64."""
    if image.shape != truth.shape:
        raise DataError(f"expected two images of one shape, got {image.shape} and {truth.shape}")
    off = image.double().clamp(0, 1) - truth.to(image.device).double().clamp(0, 1)
    return -10 * math.log10(float(off.square().mean()) + FLOOR)


def same_bits(found: Tensor, truth: Tensor) -> bool:
    """Whether an input is the true one to the last bit of the precision that one has."""
    return torch.equal(found.to(truth).view_as(truth), truth)


def ssim(image: Tensor, truth: Tensor) -> float:
    """The structural similarity of two images (C, H, W), by scikit-image."""
    try:
        from skimage.metrics import structural_similarity
    except ImportError as error:
        raise MissingExtra(
            "structural similarity needs scikit-image: pip install 'softleak[metrics]'"
        ) from error
    a, b = (entry.detach().cpu().double().clamp(0, 1).numpy() for entry in (image, truth))
    found = structural_similarity(a, b, channel_axis=0, data_range=1.0)  # type: ignore[no-untyped-call]
    return float(found)
