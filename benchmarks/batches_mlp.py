"""Recover every input and label of batches from fully connected ReLU networks, cell by cell.

    python -m benchmarks.batches_mlp [--data DIR] [--batches 20] [--only "B = 8"]

Images are CIFAR-10's (those of the package without --data), labels come from a flat Dirichlet
distribution, gradients are float32. A batch counts as recovered if every label is within 1e-3 in L1
and every image is at 100 dB or more; "proved" counts batches called UNIQUE, and "wrong" those of
them with a label or image beyond its bound. Times are seconds of processor time per batch. SPEAR
(Dimitrov et al., NeurIPS 2024) reports batches up to about 25 at m = 200.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor

import softleak as sl
from softleak.batches.sparse.attacks import recover_by_inputs
from softleak.core.knowledge import Knowledge
from softleak.core.results import BatchRecovery, Status
from softleak.core.subject import Subject
from softleak.paper import data, models
from softleak.paper.data import CIFAR10_NORM

CELLS = ((200, 8), (200, 20), (200, 25), (1000, 64), (2000, 100))  # width m and batch size B
LARGEST_L1 = 1e-3  # a label counts as recovered up to this distance
LEAST_PSNR = 100.0  # an image counts as recovered from this PSNR on
BOUND_ERRORS = 8.0  # an input is wrong beyond so many of its standard errors
FILE = "cifar10_test.npz"


@dataclass(frozen=True)
class BatchScore:
    """How one recovered batch compares with the truth.

    Attributes:
        recovered: whether every label and image is.
        proved: whether the batch was called UNIQUE.
        wrong: whether it was, and a label or an image is further off than was said.
        l1: the largest error of a label.
        psnr: the lowest PSNR of an image.
        seconds: how long the attack took.
    """

    recovered: bool
    proved: bool
    wrong: bool
    l1: float
    psnr: float
    seconds: float


def draw(images: data.ImageSet, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return network inputs (B, 3, 32, 32) and labels (B, 10)."""
    chosen = torch.randperm(len(images), generator=generator)[:size]
    x = CIFAR10_NORM.apply(images.images[chosen].permute(0, 3, 1, 2).float() / 255)
    y = -torch.rand(size, images.classes, generator=generator).log()
    return x, y / y.sum(1, keepdim=True)


def measure(images: data.ImageSet, width: int, size: int, number: int) -> BatchScore:
    """Attack one batch; compare with the truth only afterwards."""
    generator = torch.Generator().manual_seed(number)
    torch.manual_seed(number)
    model = models.mlp(3072, (width, width), 10)
    x, y = draw(images, size, generator)
    share, subject = sl.capture(model, x, y), Subject.of(model, (3, 32, 32))
    start = time.process_time()
    found = recover_by_inputs(subject, share, Knowledge(scale="known", samples=size))
    return _scored(found, x.double(), y.double(), time.process_time() - start)


def _scored(found: BatchRecovery | None, x: Tensor, y: Tensor, seconds: float) -> BatchScore:
    if found is None or found.inputs is None or len(found.inputs) != len(x):
        return BatchScore(False, False, False, float("inf"), 0.0, seconds)
    order = torch.cdist(x.flatten(1), found.inputs.flatten(1)).argmin(1)
    off = x - found.inputs[order]
    std = torch.tensor(CIFAR10_NORM.std, dtype=torch.double).view(3, 1, 1)
    psnr = -10 * (off * std).square().mean((1, 2, 3)).log10()
    labels = torch.stack([s.label for s in found.samples if s.label is not None])[order]
    l1 = (labels - y).abs().sum(1)
    bounds = torch.tensor([s.error for s in found.samples], dtype=torch.double)[order]
    beyond = bool((l1 > bounds).any()) or float(off.abs().max()) > BOUND_ERRORS * found.input_error
    proved = found.status is Status.UNIQUE
    good = bool((l1 < LARGEST_L1).all()) and bool((psnr >= LEAST_PSNR).all())
    return BatchScore(good, proved, proved and beyond, float(l1.max()), float(psnr.min()), seconds)


def row(width: int, size: int, scores: Sequence[BatchScore]) -> str:
    """Return the line of one cell."""
    return (
        f"m = {width:4d}  B = {size:3d}  recovered {sum(s.recovered for s in scores):2d} of "
        f"{len(scores)}  proved {sum(s.proved for s in scores):2d}  wrong "
        f"{sum(s.wrong for s in scores)}  worst L1 {max(s.l1 for s in scores):.1e}  "
        f"worst PSNR {min(s.psnr for s in scores):.0f} dB  "
        f"{mean(s.seconds for s in scores):.1f} s per batch"
    )


def main() -> None:
    """Measure every cell and print the table, row by row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help=f"the folder that holds {FILE}")
    parser.add_argument("--batches", type=int, default=20, help="batches per cell")
    parser.add_argument("--first", type=int, default=0, help="the number of the first batch")
    parser.add_argument("--only", default="", help="run cells whose title contains this")
    given = parser.parse_args()
    images = data.load(given.data / FILE) if given.data else data.embedded()
    numbers = range(given.first, given.first + given.batches)
    for width, size in CELLS:
        if given.only in f"m = {width} B = {size}":
            scores = [measure(images, width, size, number) for number in numbers]
            print(row(width, size, scores), flush=True)


if __name__ == "__main__":
    main()
