"""Recover every label and feature of batches from AlexNet, whose end is fully connected.

    python -m benchmarks.batches_alexnet --data DIR [--weights DIR] [--batches 20] [--only TITLE]

Images are of Flowers-17 at 224 pixels, labels come from a flat Dirichlet distribution over its 17
classes, gradients are float32, batches have eight samples. A batch counts as recovered if every
label is within 1e-3 in L1; "proved" counts batches called UNIQUE, and "wrong" those of them with a
label beyond its bound. Times are seconds of processor time per batch. "Trained" needs the weights
that `softleak train alexnet_flowers` writes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import softleak as sl
from softleak.batches.recover import read_batch
from softleak.core.knowledge import Knowledge
from softleak.core.results import Status
from softleak.core.subject import Subject
from softleak.paper import data, models
from softleak.paper.networks import NETWORKS, Shelf

SIZE, CLASSES = 8, 17
LARGEST_L1 = 1e-3  # a label counts as recovered up to this distance


def _untrained(_: Shelf) -> nn.Module:
    torch.manual_seed(0)
    return models.alexnet(CLASSES).eval()


def _with_dropout(shelf: Shelf) -> nn.Module:
    return _untrained(shelf).train()


CELLS: Mapping[str, Callable[[Shelf], nn.Module]] = {
    "untrained": _untrained,
    "untrained, train mode with dropout": _with_dropout,
    "uniform weights": NETWORKS["alexnet"].build,
    "trained": NETWORKS["alexnet trained"].build,
}


@dataclass(frozen=True)
class TailScore:
    """How one recovered batch compares with the truth: see the module's description."""

    recovered: bool
    proved: bool
    wrong: bool
    l1: float
    seconds: float


def draw(images: data.ImageSet, number: int) -> tuple[Tensor, Tensor]:
    """Return network inputs (8, 3, 224, 224) and labels (8, 17)."""
    generator = torch.Generator().manual_seed(number)
    norm = NETWORKS["alexnet"].normalisation
    stream = data.samples(images, data.Hard(), SIZE, 7000 + number, norm)
    x = torch.stack([one.x.reshape(3, 224, 224) for one in stream]).float()
    y = -torch.rand(SIZE, CLASSES, generator=generator).log()
    return x, y / y.sum(1, keepdim=True)


def measure(subject: Subject, x: Tensor, y: Tensor) -> TailScore:
    """Attack one batch; compare with the truth only afterwards."""
    share = sl.capture(subject.model, x, y)
    start = time.process_time()
    found = read_batch(subject, share, Knowledge(samples=SIZE, scale="known"))
    seconds = time.process_time() - start
    if len(found.samples) != SIZE:
        return TailScore(False, False, False, float("inf"), seconds)
    labels = torch.stack([one.label for one in found.samples if one.label is not None])
    distances = torch.cdist(y.double(), labels, p=1)
    bounds = torch.tensor([one.error for one in found.samples], dtype=torch.double)
    proved = found.status is Status.UNIQUE
    l1 = float(distances.amin(1).max())
    beyond = bool((distances.amin(0) > bounds).any())
    return TailScore(l1 < LARGEST_L1, proved, proved and beyond, l1, seconds)


def main() -> None:
    """Print a row for each network."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the data packs")
    parser.add_argument("--weights", type=Path, help="folder of trained weights")
    parser.add_argument("--batches", type=int, default=20, help="batches per row")
    parser.add_argument("--first", type=int, default=0, help="the number of the first batch")
    parser.add_argument("--only", default="", help="run the row of this title alone")
    given = parser.parse_args()
    torch.set_num_threads(1)
    shelf = Shelf(given.data, given.weights)
    images = shelf.images(NETWORKS["alexnet"].source)
    for title, build in CELLS.items():
        if given.only not in ("", title):
            continue
        if title == "trained" and NETWORKS["alexnet trained"].lacking(shelf):
            continue
        subject = Subject.of(build(shelf), (3, 224, 224))
        numbers = range(given.first, given.first + given.batches)
        scores = [measure(subject, *draw(images, number)) for number in numbers]
        print(
            f"{title}: recovered {sum(s.recovered for s in scores)} of {len(scores)}  proved "
            f"{sum(s.proved for s in scores)}  wrong {sum(s.wrong for s in scores)}  worst L1 "
            f"{max(s.l1 for s in scores):.1e}  "
            f"{sum(s.seconds for s in scores) / len(scores):.1f} s per batch",
            flush=True,
        )


if __name__ == "__main__":
    main()
