"""This module scores a reconstructed image against the true one, for clamped pixels."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from softleak.errors import DataError, MissingExtra, how_to_install

LEAST_SQUARED_ERROR = 1e-30  # so that 300 dB stand for no error at all


def psnr(image: Tensor, truth: Tensor) -> float:
    """Return the peak signal-to-noise ratio in dB, computed in float64.

    Args:
        image: the reconstruction, pixels in [0, 1]; values beyond are clamped.
        truth: the true image, of the same shape.
    """
    if image.shape != truth.shape:
        raise DataError(f"expected two images of one shape, got {image.shape} and {truth.shape}")
    off = image.double().clamp(0, 1) - truth.to(image.device).double().clamp(0, 1)
    return -10 * math.log10(float(off.square().mean()) + LEAST_SQUARED_ERROR)


def same_bits(found: Tensor, truth: Tensor) -> bool:
    """Return whether an input equals the true one in every bit of the true one's precision."""
    return torch.equal(found.to(truth).view_as(truth), truth)


def ssim(image: Tensor, truth: Tensor) -> float:
    """Return the structural similarity, from -1 to 1, by scikit-image (extra `metrics`).

    Args:
        image: the reconstruction (C, H, W), pixels in [0, 1]; values beyond are clamped.
        truth: the true image, of the same shape.
    """
    try:
        from skimage.metrics import structural_similarity
    except ImportError as error:
        raise MissingExtra(
            f"structural similarity needs scikit-image: {how_to_install('metrics')}"
        ) from error
    a, b = (entry.detach().cpu().double().clamp(0, 1).numpy() for entry in (image, truth))
    found = structural_similarity(a, b, channel_axis=0, data_range=1.0)  # type: ignore[no-untyped-call]
    return float(found)
