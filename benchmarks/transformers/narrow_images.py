"""Images of models with more patches than width: the closed form, and Gauss–Newton from there."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import torch
from torch import Tensor

import softleak as sl
from softleak.matching import GaussNewton, Image
from softleak.paper import data, models

NARROW_HEADER = (
    "| image | labels | directions open | closed form dB | then Gauss–Newton dB | status | s "
    "|\n|---|---|---|---|---|---|---|"
)
NARROW_SECONDS = 100.0  # of Gauss–Newton, on one image


def narrow_lines(count: int) -> Iterator[str]:
    """Yield a row for each image of softleak's ViT 16/2: 64 patches of 12 entries, width 24."""
    torch.manual_seed(0)
    model = models.vit(classes=10, image=16, patch=2, width=24, depth=2, heads=2).eval()
    drawn = data.samples(data.embedded(), data.Mixup(), count, 3, data.CIFAR10_NORM, 16)
    for number, s in enumerate(drawn):
        share = sl.capture(model, s.x, s.y)
        found = sl.recover_label(model, share)
        inv = sl.invert(model, share, found)
        start = time.process_time()
        solved = sl.reconstruct(
            model, share, found, optimiser=GaussNewton(seconds=NARROW_SECONDS),
            start=Image(inv.input.float()),
        )  # fmt: skip
        spent = time.process_time() - start
        after = math.nan if solved.input is None else _psnr(solved.input, s.x)
        yield (
            f"| {number} | mixed | 40 of 64 | {_psnr(inv.input, s.x):.1f} | {after:.1f} "
            f"| {solved.status.name} | {spent:.0f} |"
        )


def _psnr(found: Tensor, true: Tensor) -> float:
    pixel = sum(data.CIFAR10_NORM.std) / len(data.CIFAR10_NORM.std)
    return -20 * math.log10(float((found.double() - true).square().mean().sqrt()) * pixel)
