"""Measure how many samples of a batch are recovered from one share, per network and family.

python -m benchmarks.batches --data DIR --weights DIR --batches 100 --only "lenet trained"

``--first`` goes on where an earlier run ended. A label is right if its L1 error is below 1e-3. All
samples count. Time is that of the processor.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from torch import Tensor, nn

import softleak as sl
from softleak.batches.recover import read_batch
from softleak.core.knowledge import Knowledge
from softleak.core.results import BatchRecovery, Status
from softleak.core.subject import Subject
from softleak.paper import data
from softleak.paper.data import Augmentation, ImageSet, Sample
from softleak.paper.networks import NETWORKS, Network, Shelf

RIGHT = 1e-3
KINDS: Mapping[str, tuple[Augmentation, sl.Family]] = {
    "one-hot": (data.Hard(), sl.OneHot()),
    "smoothed": (data.Smoothing(), sl.Smoothed()),
    "mixed": (data.Mixup(), sl.Mixed()),
}


@dataclass(frozen=True)
class Cell:
    """One network, one kind of label and one size of batch."""

    network: str
    kind: str
    size: int


@dataclass(frozen=True)
class Score:
    """What a cell of batches gave: counts of samples, and the processor's time per batch."""

    samples: int
    right: int
    proved: int
    wrong: int
    broken: int
    whole: int
    batches: int
    hidden: int
    seconds: float

    @property
    def row(self) -> str:
        """The figures as a row of the table."""
        part = 100 / self.samples
        return (
            f"{part * self.right:.1f} | {part * self.proved:.1f} | {self.wrong} | {self.broken} | "
            f"{self.hidden} | {self.whole} of {self.batches} | {self.seconds:.2f}"
        )


def cells() -> Iterator[Cell]:
    """The cells of the table."""
    for kind in KINDS:
        for size in (2, 3, 4):
            yield Cell("lenet trained", kind, size)
            yield Cell("resnet18_cifar", kind, size)
            yield Cell("resnet18_cifar trained", kind, size)
        for size in (6, 8):
            yield Cell("lenet trained", kind, size)
        for size in (2, 4):
            yield Cell("resnet20 converged", kind, size)
            yield Cell("resnet56 converged", kind, size)
    yield from cells_of_many_classes()


def cells_of_many_classes() -> Iterator[Cell]:
    """The cells of a hundred classes and more."""
    many = ("lenet on cifar100", "resnet18 on cifar100")
    yield Cell("lenet on cifar100", "mixed", 8)
    for kind, size, network in product(("one-hot", "smoothed"), (8, 16, 32), many):
        yield Cell(network, kind, size)
    for kind in ("one-hot", "smoothed"):
        yield Cell("resnet50 on imagenet", kind, 8)


def freeze_all_but_head(model: nn.Module, network: Network) -> None:
    """Leave the head's gradient alone in the share; capture takes a third of the time."""
    head = Subject.of(model, network.input_shape).head
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in (head.weight_name, head.bias_name))


def with_bias(model: nn.Module, network: Network) -> nn.Module:
    """Return the model with a bias in its head."""
    name = Subject.of(model, network.input_shape).head.weight_name.removesuffix(".weight")
    old = model.get_submodule(name)
    assert isinstance(old, nn.Linear)
    torch.manual_seed(0)
    new = nn.Linear(old.in_features, old.out_features)
    new.weight.data.copy_(old.weight.data)
    model.set_submodule(name, new)
    return model.eval()


def batch_of(
    network: Network, images: ImageSet, kind: Augmentation, size: int, number: int,
    distinct: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The inputs and soft labels of one batch of real images."""
    resized = None if images.shape == network.input_shape else network.size
    count = 8 * size if distinct else size
    stream = data.samples(images, kind, count, 7000 + number, network.normalisation, resized)
    drawn: list[Sample] = []
    seen: set[int] = set()
    for sample in stream:
        named = int(sample.y.argmax())
        if len(drawn) < size and not (distinct and named in seen):
            drawn.append(sample)
        seen.add(named)
    x = torch.stack([sample.x.reshape(network.input_shape) for sample in drawn])
    return x.float(), torch.stack([sample.y.flatten() for sample in drawn]).float()


def measure(
    cell: Cell,
    network: Network,
    model: nn.Module,
    images: ImageSet,
    *,
    numbers: Sequence[int],
    named: bool,
    distinct: bool = False,
) -> Score:
    """Attack these batches of one cell; the truth is compared afterwards."""
    augmentation, family = KINDS[cell.kind]
    subject = Subject.of(model, network.input_shape)
    knowledge = Knowledge(family if named else None, samples=cell.size)
    counts = torch.zeros(6, dtype=torch.long)
    seconds = 0.0
    for number in numbers:
        x, y = batch_of(network, images, augmentation, cell.size, number, distinct)
        share = sl.capture(model, x, y)
        begun = time.process_time()
        found = read_batch(subject, share, knowledge)
        seconds += time.process_time() - begun
        counts += score(found, y.double())
    right, proved, wrong, broken, whole, hidden = counts.tolist()
    batches = len(numbers)
    samples = batches * cell.size
    return Score(samples, right, proved, wrong, broken, whole, batches, hidden, seconds / batches)


def score(found: BatchRecovery, truth: Tensor) -> Tensor:
    """Counts of one batch: right, proved, wrongly proved, bounds broken, whole, not shown."""
    labels = [sample.label for sample in found.samples if sample.label is not None]
    if not labels:
        return torch.tensor([0, 0, 0, 0, 0, 0])
    distances = torch.cdist(truth, torch.stack(labels), p=1)
    right = int((distances.amin(1) < RIGHT).sum())
    off = distances.amin(0)
    unique = torch.tensor([sample.status is Status.UNIQUE for sample in found.samples])
    bounds = torch.tensor([sample.error for sample in found.samples])
    wrong = int((unique & (off >= RIGHT)).sum())
    broken = int((unique & (off > bounds)).sum())
    hidden = len(truth) - len(labels) if found.status is Status.AMBIGUOUS else 0
    whole = int(found.status is Status.UNIQUE)
    return torch.tensor([right, int(unique.sum()), wrong, broken, whole, hidden])


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data packs")
    parser.add_argument("--weights", type=Path, help="folder of trained weights")
    parser.add_argument("--batches", type=int, default=100, help="batches per cell")
    parser.add_argument("--first", type=int, default=0, help="the number of the first batch")
    parser.add_argument("--only", default="", help="only networks whose name begins like this")
    parser.add_argument("--sizes", type=int, nargs="*", help="only these batch sizes")
    parser.add_argument("--kinds", nargs="*", help="only these kinds of label")
    parser.add_argument("--frozen", action="store_true", help="the client trains the head alone")
    parser.add_argument("--bias", action="store_true", help="give the head a bias")
    parser.add_argument("--distinct", action="store_true", help="no class twice in a batch")
    parser.add_argument("--unnamed", action="store_true", help="do not say the labels' family")
    given = parser.parse_args()
    torch.set_num_threads(1)
    shelf = Shelf(given.data, given.weights)
    print(
        "| network | labels | B | right % | proved % | wrong UNIQUE | bounds broken | not shown | "
        "batches proved | s per batch |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    for cell in cells():
        if not cell.network.startswith(given.only):
            continue
        if cell.size not in (given.sizes or [cell.size]):
            continue
        if cell.kind not in (given.kinds or [cell.kind]):
            continue
        network = NETWORKS[cell.network]
        if network.lacking(shelf):
            print(f"{cell.network} needs {network.lacking(shelf)}", file=sys.stderr)
            continue
        model = network.build(shelf)
        if given.bias:
            model = with_bias(model, network)
        if given.frozen:
            freeze_all_but_head(model, network)
        images = shelf.images(network.source)
        numbers = range(given.first, given.first + given.batches)
        options = {"named": not given.unnamed, "distinct": given.distinct}
        found = measure(cell, network, model, images, numbers=numbers, **options)
        print(f"| {cell.network} | {cell.kind} | {cell.size} | {found.row} |", flush=True)


if __name__ == "__main__":
    main()
