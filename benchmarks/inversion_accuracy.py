"""How exactly and how honestly inputs are recovered, cell by cell.

    python -m benchmarks.inversion_accuracy --samples 100 [--data DIR] [--only "lenet trained"]

Every image counts: one whose label or input was not recovered is scored as the data set's mean
image would be.
PSNR and SSIM of clamped, unquantised pixels of range one. "honest" counts images whose true error
is within a factor 3 of the predicted one, "rosy" those whose true error is larger than that, and
"bits" those that are, in the precision they were sent in, equal to the last bit.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median

import torch
from rich.console import Console
from torch import Tensor, nn

import softleak as sl
from softleak import data, models
from softleak.data import CIFAR10_NORM, ImageSet
from softleak.data.imageset import resize
from softleak.experiments.inversion import pixels
from softleak.experiments.shelf import CIFAR10, FLOWERS17, DataSet
from softleak.labels.evidence.relation import Relation
from softleak.metrics import psnr, same_bits, ssim

COLUMNS = (
    "network",
    "labels",
    "mean dB",
    "median",
    "worst",
    "SSIM",
    "honest",
    "rosy",
    "bits",
    "failed",
)
WIDTHS = (27, 9, 7, 6, 6, 6, 6, 4, 4, 6)
FACTOR = 3.0


@dataclass(frozen=True)
class Cell:
    """A network, the images it sees, and a kind of label."""

    network: str
    make: Callable[[], nn.Module]
    augmentation: data.Augmentation
    images: DataSet = CIFAR10
    size: int = 32


@dataclass(frozen=True)
class Scored:
    """One image: its quality, and the true error over the predicted one."""

    psnr: float
    ssim: float
    ratio: float
    bits: bool = False

    @property
    def honest(self) -> bool:
        return 1 / FACTOR <= self.ratio <= FACTOR


ACTIVATIONS = {"": nn.ReLU, ", sigmoid": nn.Sigmoid, ", tanh": nn.Tanh, ", leaky": nn.LeakyReLU}


def networks() -> Iterator[tuple[str, Callable[[], nn.Module], DataSet, int]]:
    """Name, maker, data set and image size."""
    for images, size, classes in ((FLOWERS17, 64, 17), (CIFAR10, 32, 10)):
        for name, activation in ACTIVATIONS.items():
            make = partial(models.fcn4, classes, size, activation=activation)
            yield f"fcn4 {size}×{size}{name}", make, images, size
        make = partial(models.fcn4, classes, size, bias=True)
        yield f"fcn4 {size}×{size}, with biases", make, images, size
    yield "lenet uniform", lambda: models.uniform_(models.lenet()), CIFAR10, 32
    yield "lenet default", models.lenet, CIFAR10, 32
    yield "lenet trained", models.trained_lenet, CIFAR10, 32
    yield "lenet leaky", partial(models.lenet, activation=nn.LeakyReLU), CIFAR10, 32
    yield "lenet tanh", partial(models.lenet, activation=nn.Tanh), CIFAR10, 32


def cells() -> Iterator[Cell]:
    for name, make, images, size in networks():
        for augmentation in (data.Smoothing(), data.Mixup()):
            yield Cell(name, make, augmentation, images, size)


def measure(cell: Cell, images: ImageSet, samples: int, seed: int = 1) -> list[Scored]:
    """Draw, capture, attack; only then look at the images."""
    torch.manual_seed(0)
    model = cell.make().eval()
    shape = (3, cell.size, cell.size)
    head = sl.Head.of(model)
    evidence = sl.probe(model, shape, head=head)
    chain = sl.Chain.of(model, head, shape)
    size = None if cell.images == CIFAR10 else cell.size
    drawn = data.samples(images, cell.augmentation, samples, seed, CIFAR10_NORM, size)
    nothing = resize(images.mean()[None], cell.size)[0].double()
    return [
        _score(sample, _attack(model, sample, head, evidence, chain), nothing) for sample in drawn
    ]


def _attack(
    model: nn.Module, sample: data.Sample, head: sl.Head, evidence: Sequence[Relation],
    chain: sl.Chain,
) -> sl.Inversion | None:  # fmt: skip
    share = sl.capture(model, sample.x, sample.y)
    recovery = sl.recover_label(model, share, evidence=evidence, head=head)
    if recovery.feature is None:
        return None
    return sl.invert(model, share, recovery, chain=chain, pixel=pixels(CIFAR10_NORM))


def _score(sample: data.Sample, inversion: sl.Inversion | None, nothing: Tensor) -> Scored:
    truth = CIFAR10_NORM.invert(sample.x.double())
    if inversion is None or not inversion.input.isfinite().all():
        return Scored(psnr(nothing, truth), ssim(nothing, truth), math.inf)
    image = CIFAR10_NORM.invert(inversion.input.view_as(truth))
    error = float((image - truth).square().mean().sqrt())
    predicted = 10 ** (-inversion.psnr_predicted / 20)
    bits = same_bits(inversion.input, sample.x)
    return Scored(psnr(image, truth), ssim(image, truth), error / predicted, bits)


def row(cell: Cell, scores: list[Scored]) -> str:
    qualities = [score.psnr for score in scores]
    kind = type(cell.augmentation).__name__
    parts = (
        cell.network, kind, f"{mean(qualities):.1f}", f"{median(qualities):.1f}",
        f"{min(qualities):.1f}", f"{mean(s.ssim for s in scores):.3f}",
        f"{sum(s.honest for s in scores)}", f"{sum(s.ratio > FACTOR for s in scores)}",
        f"{sum(s.bits for s in scores)}", f"{sum(math.isinf(s.ratio) for s in scores)}",
    )  # fmt: skip
    return line(parts)


def line(parts: tuple[str, ...]) -> str:
    return "  ".join(part.ljust(width) for part, width in zip(parts, WIDTHS, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--data", type=Path, help="a folder of data packs")
    parser.add_argument("--only", default="", help="cells whose name contains this")
    given = parser.parse_args()
    console = Console(width=120, highlight=False)
    console.print(line(COLUMNS))
    total: list[Scored] = []
    for cell in cells():
        if given.only not in cell.network:
            continue
        path = given.data / cell.images.file if given.data else None
        if path is None and cell.images != CIFAR10:
            console.print(f"{cell.network}: left out, {cell.images.file} is not at hand")
            continue
        images = data.load(path) if path else data.embedded()
        scores = measure(cell, images, given.samples)
        total += scores
        console.print(row(cell, scores))
    honest, rosy = sum(s.honest for s in total), sum(s.ratio > FACTOR for s in total)
    console.print(
        f"of {len(total)} images the true error was within a factor {FACTOR:.0f} of the predicted "
        f"one for {honest}, and larger than that for {rosy}"
    )


if __name__ == "__main__":
    main()
