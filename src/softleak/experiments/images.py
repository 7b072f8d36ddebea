"""How an image is scored beside the truth: clamped pixels of range one, every image counted."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from softleak.data import Normalisation, Sample
from softleak.experiments.experiment import Column, Unit
from softleak.metrics import lpips, psnr, ssim
from softleak.sweep import Measures

PSNR, SSIM, LPIPS = "PSNR", "SSIM", "LPIPS"
_TINY = torch.zeros(1, 7, 7)  # the smallest image scikit-image compares
QUALITIES = (
    Column("PSNR", PSNR, Unit.DECIBEL, PSNR),
    Column("SSIM", SSIM, Unit.PLAIN, SSIM, check=lambda: ssim(_TINY, _TINY)),
    Column("LPIPS", LPIPS, Unit.PLAIN, LPIPS, higher=False),
)


def qualities(
    found: Tensor | None, sample: Sample, norm: Normalisation, nothing: Tensor
) -> Measures:
    """Of an input (C, H, W); where none was found, of the image ``nothing`` that needs no share."""
    usable = found is not None and bool(found.isfinite().all())
    image = norm.invert(found.double()) if usable and found is not None else nothing.double()
    truth = norm.invert(sample.x.double())
    scores = {PSNR: psnr(image, truth), SSIM: ssim(image, truth), LPIPS: lpips(image, truth)}
    return {name: finite(value) for name, value in scores.items()}


def finite(value: float) -> float | None:
    """The value, or None for what a record cannot hold."""
    return value if math.isfinite(value) else None
