"""How an image is scored beside the true one: clamped pixels from 0 to 1, every image counted."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from softleak.data import Normalisation, Sample
from softleak.experiments.experiment import Column, Unit
from softleak.metrics import lpips, psnr, ssim
from softleak.sweep import Measures

PSNR, SSIM, LPIPS = "PSNR", "SSIM", "LPIPS"
_SMALLEST = torch.zeros(1, 7, 7)  # the smallest image that scikit-image compares
QUALITIES = (
    Column("PSNR", PSNR, Unit.DECIBEL, PSNR),
    Column("SSIM", SSIM, Unit.PLAIN, SSIM, check=lambda: ssim(_SMALLEST, _SMALLEST)),
    Column("LPIPS", LPIPS, Unit.PLAIN, LPIPS, higher=False),
)


def qualities(
    found: Tensor | None, sample: Sample, norm: Normalisation, nothing: Tensor
) -> Measures:
    """Return PSNR, SSIM and LPIPS of a recovered input.

    Args:
        found: the input (C, H, W) as the model sees it, or None if none was found.
        sample: the truth.
        norm: the normalisation that turns pixels into inputs.
        nothing: the image (C, H, W) that is scored instead if no usable input was found.
    """
    usable = found is not None and bool(found.isfinite().all())
    image = norm.invert(found.double()) if usable and found is not None else nothing.double()
    truth = norm.invert(sample.x.double())
    scores = {PSNR: psnr(image, truth), SSIM: ssim(image, truth), LPIPS: lpips(image, truth)}
    return {name: finite(value) for name, value in scores.items()}


def finite(value: float) -> float | None:
    """Return the value, or None if it is NaN or infinite, which a record cannot hold."""
    return value if math.isfinite(value) else None
