"""Measure how exactly and how honestly inputs are recovered, cell by cell.

    python -m benchmarks.inversion_accuracy --samples 100 [--data DIR] [--only "lenet trained"]

Every image counts: one whose label or input was not recovered is scored as the data set's mean
image. PSNR and SSIM are those of clamped, unquantised pixels from 0 to 1. "honest" counts images
whose true error is within a factor 3 of the predicted one, and "rosy" those whose true error is
larger than that. "bits" counts images that are equal to the last bit in the precision they were
sent in.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean, median

from rich.console import Console
from torch import Tensor, nn

import softleak as sl
from softleak.audit.metrics import psnr, same_bits, ssim
from softleak.paper import data, models
from softleak.paper.data import CIFAR10_NORM
from softleak.paper.networks import (
    MIXED,
    NETWORKS,
    SMOOTHED,
    AttackedNetwork,
    AugmentationKind,
    Network,
    Shelf,
)
from softleak.paper.tables import inverse

COLUMNS = (
    "network", "labels", "mean dB", "median", "worst", "SSIM", "honest", "rosy", "bits", "failed",
)  # fmt: skip
WIDTHS = (27, 9, 7, 6, 6, 6, 6, 4, 4, 6)
HONEST_FACTOR = 3.0  # the true error may differ from the predicted one by this factor
ACTIVATIONS = {"": nn.ReLU, ", sigmoid": nn.Sigmoid, ", tanh": nn.Tanh, ", leaky": nn.LeakyReLU}


@dataclass(frozen=True)
class Cell:
    """A network and a kind of label.

    Attributes:
        title: the name of the network in the table.
        network: the network with its data.
        kind: how labels are made.
    """

    title: str
    network: Network
    kind: AugmentationKind


@dataclass(frozen=True)
class Scored:
    """How one image compares with the truth.

    Attributes:
        psnr: the PSNR in dB.
        ssim: the SSIM.
        ratio: the true error divided by the predicted one; infinite if no image was found.
        bits: whether the input came back to the last bit.
    """

    psnr: float
    ssim: float
    ratio: float
    bits: bool = False

    @property
    def honest(self) -> bool:
        """Whether the true error is within a factor of the predicted one."""
        return 1 / HONEST_FACTOR <= self.ratio <= HONEST_FACTOR


def networks() -> Iterator[tuple[str, Network]]:
    """Yield the title and the network of each row; variants differ from the paper's as they say."""
    for name, classes in (("fcn4", 17), ("fcn4 on cifar10", 10)):
        paper = NETWORKS[name]
        title, fcn4 = f"fcn4 {paper.size}×{paper.size}", partial(models.fcn4, classes, paper.size)
        for suffix, activation in ACTIVATIONS.items():
            yield f"{title}{suffix}", replace(paper, make=partial(fcn4, activation=activation))
        yield f"{title}, with biases", replace(paper, make=partial(fcn4, bias=True))
    default = NETWORKS["lenet default"]
    yield "lenet uniform", NETWORKS["lenet"]
    yield "lenet default", default
    yield "lenet trained", NETWORKS["lenet trained"]
    for title, activation in (("lenet leaky", nn.LeakyReLU), ("lenet tanh", nn.Tanh)):
        yield title, replace(default, make=partial(models.lenet, activation=activation))


def cells() -> Iterator[Cell]:
    """Yield every cell, in the order of the table."""
    for title, network in networks():
        for kind in (SMOOTHED, MIXED):
            yield Cell(title, network, kind)


def measure(cell: Cell, shelf: Shelf, samples: int) -> list[Scored]:
    """Draw samples and attack their gradients; compare with the images only afterwards.

    Args:
        cell: what to attack.
        shelf: the data packs.
        samples: the number of samples.
    """
    target = AttackedNetwork.of(cell.network, shelf, everything=True)
    nothing = target.mean_image.double()
    drawn = (target.sample(cell.kind.augmentation, number) for number in range(samples))
    return [_score(sample, inverse(target, target.share(sample))[1], nothing) for sample in drawn]


def _score(sample: data.Sample, inversion: sl.Inversion | None, nothing: Tensor) -> Scored:
    """Return how an inverted input compares with the true one."""
    truth = CIFAR10_NORM.invert(sample.x.double())
    if inversion is None or not inversion.input.isfinite().all():
        return Scored(psnr(nothing, truth), ssim(nothing, truth), math.inf)
    image = CIFAR10_NORM.invert(inversion.input.view_as(truth))
    error = float((image - truth).square().mean().sqrt())
    predicted = 10 ** (-inversion.psnr_predicted / 20)
    bits = same_bits(inversion.input, sample.x)
    return Scored(psnr(image, truth), ssim(image, truth), error / predicted, bits)


def row(cell: Cell, scores: Sequence[Scored]) -> str:
    """Return the line of one cell."""
    qualities = [score.psnr for score in scores]
    kind = type(cell.kind.augmentation).__name__
    parts = (
        cell.title, kind, f"{mean(qualities):.1f}", f"{median(qualities):.1f}",
        f"{min(qualities):.1f}", f"{mean(s.ssim for s in scores):.3f}",
        f"{sum(s.honest for s in scores)}", f"{sum(s.ratio > HONEST_FACTOR for s in scores)}",
        f"{sum(s.bits for s in scores)}", f"{sum(math.isinf(s.ratio) for s in scores)}",
    )  # fmt: skip
    return line(parts)


def line(parts: tuple[str, ...]) -> str:
    """Return one line of the table."""
    return "  ".join(part.ljust(width) for part, width in zip(parts, WIDTHS, strict=True))


def main() -> None:
    """Measure every cell and print the table, row by row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=100, help="samples per cell")
    parser.add_argument("--data", type=Path, help="the folder of data packs")
    parser.add_argument("--only", default="", help="run cells whose network's name contains this")
    given = parser.parse_args()
    console, shelf = Console(width=120, highlight=False), Shelf(given.data)
    console.print(line(COLUMNS))
    total: list[Scored] = []
    for cell in cells():
        if given.only not in cell.title:
            continue
        if lacking := cell.network.lacking(shelf):
            console.print(f"{cell.title}: left out, because {lacking} is missing; see --data")
            continue
        scores = measure(cell, shelf, given.samples)
        total += scores
        console.print(row(cell, scores))
    honest, rosy = sum(s.honest for s in total), sum(s.ratio > HONEST_FACTOR for s in total)
    console.print(
        f"Of {len(total)} images, the true error was within a factor {HONEST_FACTOR:.0f} of the "
        f"predicted one for {honest}, and larger than that for {rosy}."
    )


if __name__ == "__main__":
    main()
