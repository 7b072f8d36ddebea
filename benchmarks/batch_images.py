"""Measure the images of a batch that gradient matching finds, with and without recovered samples.

    python -m benchmarks.batch_images --data DIR [--batches 5] [--sizes 2 3 4 8] [--kinds smoothed]

Both sides see the same share, start at the same noise and have the same optimiser with the same
number of evaluations. One side knows how often each class occurs, exactly, and takes one-hot
labels of these classes. The other has what ``recover_batch`` found: a label and a feature for each
sample. Batches of at most four are of the trained LeNet with 10 classes. Larger ones are of a LeNet
with 100 classes, since ten classes do not tell that many samples apart. The PSNR is that of pixels
of range one, in the best pairing with the true images. Every image counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

import torch
from rich.console import Console
from torch import Tensor, nn

import softleak as sl
from benchmarks.batches import KINDS, batch_of
from softleak.audit.metrics import paired_psnr
from softleak.matching import L2, LBFGS, GivenLabel, Reconstruction
from softleak.paper.networks import NETWORKS, Network, Shelf

SMALL, LARGE = "lenet trained", "lenet on cifar100"
FEATURES = L2(alpha=0.0, beta=2.0)  # the paper's weights (Table 4) where the feature is known
MOST_OF_TEN = 4  # samples that ten classes tell apart one at a time: 2 B + 1 < C


@dataclass(frozen=True)
class ImagePair:
    """The PSNR of every image of a batch in dB, by both sides, and how many labels were proved."""

    counts: list[float]
    ours: list[float]
    proved: int


@dataclass(frozen=True, eq=False)
class ImageCell:
    """Batches of one network, one size and one kind of label."""

    network: str
    kind: str
    size: int
    steps: int

    @property
    def optimiser(self) -> LBFGS:
        """Return the optimiser of both sides."""
        return LBFGS(steps=self.steps)

    def pairs(self, shelf: Shelf, batches: int) -> Iterator[ImagePair]:
        """Yield the scores of one batch after another; the truth is read after the answers."""
        network, (drawn, family) = NETWORKS[self.network], KINDS[self.kind]
        model, images = network.build(shelf), shelf.images(network.source)
        for number in range(batches):
            x, y = batch_of(network, images, drawn, self.size, number)
            share = sl.capture(model, x, y)
            counts = GivenLabel(nn.functional.one_hot(y.argmax(1), y.shape[1]).double())
            found = sl.recover_batch(model, share, size=self.size, family=family)
            plain = sl.reconstruct(
                model, share, label=counts, objective=L2(), optimiser=self.optimiser
            )
            ours = sl.reconstruct(model, share, found, objective=FEATURES, optimiser=self.optimiser)
            scores = [_scores(network, answer, x) for answer in (plain, ours)]
            yield ImagePair(scores[0], scores[1], len(found.proved))


def _scores(network: Network, answer: Reconstruction, x: Tensor) -> list[float]:
    """Return the PSNR of every image in dB; an image that was not found counts as zero."""
    if answer.input is None:
        return [0.0] * len(x)
    pixels = network.normalisation.invert
    return paired_psnr(pixels(answer.input.float()), pixels(x))


def row(cell: ImageCell, found: list[ImagePair]) -> str:
    """Return the line of one cell."""
    counts = [score for pair in found for score in pair.counts]
    ours = [score for pair in found for score in pair.ours]
    gains = [mean(pair.ours) - mean(pair.counts) for pair in found]
    error = stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else float("nan")
    return (
        f"| {cell.network} | {cell.kind} | {cell.size} | {sum(p.proved for p in found)} of "
        f"{len(ours)} | {mean(counts):.2f} | {mean(ours):.2f} | {mean(gains):+.2f} ± {error:.2f} | "
        f"{sum(gain > 0 for gain in gains)} of {len(gains)} |"
    )


def main() -> None:
    """Measure every cell and print a row for each."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the data packs")
    parser.add_argument("--batches", type=int, default=5, help="batches per cell")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 3, 4, 8])
    parser.add_argument("--kinds", nargs="+", default=["one-hot", "smoothed"], choices=[*KINDS])
    parser.add_argument("--steps", type=int, default=30, help="steps of 20 evaluations each")
    given = parser.parse_args()
    shelf, console = Shelf(given.data), Console(width=140, highlight=False)
    console.print(
        "| network | labels | B | labels proved | class counts, dB | recovered, dB | gain, dB | "
        "batches with a gain |\n|---|---|---|---|---|---|---|---|"
    )
    for kind in given.kinds:
        for size in given.sizes:
            network = SMALL if size <= MOST_OF_TEN else LARGE
            cell = ImageCell(network, kind, size, given.steps)
            console.print(row(cell, list(cell.pairs(shelf, given.batches))), soft_wrap=True)


if __name__ == "__main__":
    main()
