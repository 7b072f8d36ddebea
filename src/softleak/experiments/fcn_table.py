"""This module holds App. D: inputs of the fully connected FCN-4, computed. The paper's PSNR is that
of bytes.
"""

from __future__ import annotations

from softleak.experiments.experiment import Column, Experiment, Unit
from softleak.experiments.image_scores import LPIPS, PSNR, QUALITIES, SSIM
from softleak.experiments.inversion import BITS, InversionCell
from softleak.experiments.kinds import MIXED, SMOOTHED

FCN = Experiment(
    "fcn",
    "App. D: inputs of FCN-4",
    (
        InversionCell("fcn4", SMOOTHED, {PSNR: 51.30, SSIM: 0.999, LPIPS: 0.001}),
        InversionCell("fcn4", MIXED, {PSNR: 66.80, SSIM: 1.0, LPIPS: 0.045}),
        # The same on the embedded images, for users without Flowers-17. The paper has no such cell.
        InversionCell("fcn4 on cifar10", SMOOTHED, {}),
        InversionCell("fcn4 on cifar10", MIXED, {}),
    ),
    (*QUALITIES, Column("to the last bit", BITS, Unit.PERCENT)),
    samples=10,
)
