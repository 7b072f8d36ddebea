"""Measure whether matching from an exact inversion ever makes an image worse.

    python -m benchmarks.matching_start --samples 20 [--data DIR]

It prints the PSNR before and after for every LeNet of the inversion table, and how many starts
were kept.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

import softleak as sl
from benchmarks.inversion_accuracy import Cell, cells
from softleak.audit.metrics import psnr
from softleak.core.results import Status
from softleak.matching import L2, LBFGS, Image, reconstruct_many
from softleak.paper.data import CIFAR10_NORM
from softleak.paper.networks import AttackedNetwork, Shelf

LBFGS_STEPS = 20  # steps of up to 20 evaluations each


@dataclass(frozen=True)
class Pair:
    """One image before and after matching.

    Attributes:
        before: the PSNR of the inversion in dB.
        after: the PSNR after matching in dB.
        kept: whether matching kept its start, because that explains the share already.
    """

    before: float
    after: float
    kept: bool


def measure(cell: Cell, shelf: Shelf, samples: int) -> list[Pair]:
    """Invert some images, match gradients from there, and score both."""
    target = AttackedNetwork.of(cell.network, shelf, everything=True)
    model = target.model
    drawn = [target.sample(cell.kind.augmentation, number) for number in range(samples)]
    shares = [target.share(sample) for sample in drawn]
    recoveries = sl.recover_labels(model, shares)
    chain = sl.Chain.of(model, target.head, target.network.input_shape)
    pairs = zip(shares, recoveries, strict=True)
    inputs = [sl.invert(model, share, rec, chain=chain).input for share, rec in pairs]
    found = reconstruct_many(
        model, shares, recoveries, objective=L2(), optimiser=LBFGS(steps=LBFGS_STEPS),
        start=[Image(x) for x in inputs],
    )  # fmt: skip
    undo = CIFAR10_NORM.invert
    return [
        Pair(
            psnr(undo(x), undo(sample.x)),
            0.0 if result.input is None else psnr(undo(result.input), undo(sample.x)),
            result.status is Status.EXPLAINED,
        )
        for x, sample, result in zip(inputs, drawn, found, strict=True)
    ]


def main() -> None:
    """Measure every LeNet and print a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=20, help="samples per cell")
    parser.add_argument("--data", type=Path, help="the folder of data packs")
    parser.add_argument("--only", default="lenet", help="run networks with this in their name")
    given = parser.parse_args()
    console, shelf = Console(width=120, highlight=False), Shelf(given.data)
    for cell in cells():
        if "lenet" not in cell.title or given.only not in cell.title:
            continue
        pairs = measure(cell, shelf, given.samples)
        worse = [pair for pair in pairs if pair.after < pair.before - 1e-6]
        most = max((pair.after - pair.before for pair in pairs), default=0.0)
        console.print(
            f"{cell.title:16} {type(cell.kind.augmentation).__name__:10} kept "
            f"{sum(p.kept for p in pairs)} of {len(pairs)}, worse {len(worse)}, best gain "
            f"{most:.1f} dB" + "".join(f"; {p.before:.1f} → {p.after:.1f}" for p in worse)
        )


if __name__ == "__main__":
    main()
