"""Does matching from an exact inversion ever make an image worse?

    python -m benchmarks.matching_start --samples 20 [--data DIR]

Every LeNet cell of the inversion table: PSNR before and after, and how many starts were kept.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

import softleak as sl
from benchmarks.inversion_accuracy import Cell, cells
from softleak import data
from softleak.data import CIFAR10_NORM, ImageSet
from softleak.experiments.shelf import CIFAR10
from softleak.matching import L2, LBFGS, Image, MatchStatus, reconstruct
from softleak.metrics import psnr

STEPS = 20  # of twenty evaluations


@dataclass(frozen=True)
class Pair:
    """An image's quality before and after, and whether the start was kept."""

    before: float
    after: float
    kept: bool


def measure(cell: Cell, images: ImageSet, samples: int) -> list[Pair]:
    torch.manual_seed(0)
    model = cell.make().eval()
    drawn = list(data.samples(images, cell.augmentation, samples, 1, CIFAR10_NORM))
    shares = [sl.capture(model, sample.x, sample.y) for sample in drawn]
    recoveries = sl.recover_labels(model, shares)
    chain = sl.Chain.of(model, sl.Head.of(model), (3, 32, 32))
    pairs = zip(shares, recoveries, strict=True)
    inputs = [sl.invert(model, share, rec, chain=chain).input for share, rec in pairs]
    found = reconstruct(
        model, shares, recoveries, objective=L2(), optimiser=LBFGS(steps=STEPS),
        start=[Image(x) for x in inputs],
    )  # fmt: skip
    undo = CIFAR10_NORM.invert
    return [
        Pair(
            psnr(undo(x), undo(sample.x)),
            0.0 if result.input is None else psnr(undo(result.input), undo(sample.x)),
            result.status is MatchStatus.EXPLAINED,
        )
        for x, sample, result in zip(inputs, drawn, found, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--data", type=Path, help="a folder of data packs")
    parser.add_argument("--only", default="lenet", help="cells whose name contains this")
    given = parser.parse_args()
    console = Console(width=120, highlight=False)
    images = data.load(given.data / CIFAR10.file) if given.data else data.embedded()
    for cell in cells():
        if "lenet" not in cell.network or given.only not in cell.network:
            continue
        pairs = measure(cell, images, given.samples)
        worse = [pair for pair in pairs if pair.after < pair.before - 1e-6]
        most = max((pair.after - pair.before for pair in pairs), default=0.0)
        console.print(
            f"{cell.network:16} {type(cell.augmentation).__name__:10} kept "
            f"{sum(p.kept for p in pairs)} of {len(pairs)}, worse {len(worse)}, best gain "
            f"{most:.1f} dB" + "".join(f"; {p.before:.1f} → {p.after:.1f}" for p in worse)
        )


if __name__ == "__main__":
    main()
