"""This package is where truth enters, to score an answer and for nothing else."""

from softleak.metrics.image_quality import psnr, same_bits, ssim
from softleak.metrics.label_error import distance_to_set, label_error
from softleak.metrics.pairing import paired_psnr, pairing
from softleak.metrics.perceptual import lpips

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
