"""Count the classes of large batches of trained networks, beside an iLRG-style baseline.

    python -m benchmarks.batch_counts --data DIR [--weights DIR] [--batches 50] [--only NETWORK]

A client sends the gradient of the head for one batch of real images with one-hot labels. Batches
are drawn from images that no reader has. Two figures are those of iLRG (Ma et al., 2023): the label
number accuracy is the part of the classes whose count is exactly right, and the instance recall is
the sum over the classes of the smaller of the true and the estimated count, over the batch size.

"iLRG" is the baseline of this package. "Proportions" are estimates of clients simulated on noise,
or on other images of the same data set, which is more knowledge than iLRG needs. "Samples" counts
the labels that ``recover_batch`` finds, where classes outnumber samples (``--one-by-one``). "Even"
counts every class alike, and "none" counts no class at all: they show what the figures are worth.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor, nn

import softleak as sl
from benchmarks.batches import freeze_all_but_head
from softleak.batches.recover import read_batch
from softleak.core.knowledge import Knowledge
from softleak.core.subject import Subject
from softleak.labels.composition import BatchReader, whole_counts
from softleak.labels.local.proportions import ProportionReader, StandIns
from softleak.paper import data
from softleak.paper.networks import CIFAR100, NETWORKS, Network, Shelf

CLASSES = 100
FITTED = 4000  # images of CIFAR-100 that the head of a hundred classes is fitted to
OWN = 2000  # images that batches are drawn from
HEAD_STEPS = 300  # steps of Adam on all of the fitted images at once
Counts = Callable[[sl.GradientShare], Tensor]  # the estimated count of every class (C,)


@dataclass(frozen=True, eq=False)
class CountCase:
    """One trained network, images that a reader may have, and other images of clients."""

    network: Network
    model: nn.Module
    public: StandIns
    own: StandIns

    @property
    def subject(self) -> Subject:
        """Return the model made ready."""
        return Subject.of(self.model, self.network.input_shape)


def ten_classes(name: str, shelf: Shelf) -> CountCase:
    """Return a trained network; readers have images of the training set, clients of the test."""
    network, folder = NETWORKS[name], shelf.data
    assert folder is not None
    model = network.build(shelf)
    freeze_all_but_head(model, network)
    public = _images(network, data.load(folder / "cifar10_train10k.npz"), 0, FITTED)
    return CountCase(network, model, public, _images(network, shelf.images(network.source), 1, OWN))


def hundred_classes(name: str, shelf: Shelf) -> CountCase:
    """Return a trained network whose head is replaced by one fitted to 100 other classes."""
    network = replace(NETWORKS[name], source=CIFAR100)
    model, images = network.build(shelf), shelf.images(CIFAR100)
    every = _images(network, images, 0, FITTED + OWN)
    public = StandIns(every.images[:FITTED], every.classes[:FITTED])
    own = StandIns(every.images[FITTED:], every.classes[FITTED:])
    name = Subject.of(model, network.input_shape).head.name
    *parents, last = name.split(".")
    setattr(model.get_submodule(".".join(parents)), last, nn.Identity())
    with torch.no_grad():
        features = torch.cat([model(part) for part in public.images.chunk(FITTED // 100)])
    setattr(model.get_submodule(".".join(parents)), last, _fitted(features, public.classes))
    freeze_all_but_head(model, network)
    return CountCase(network, model, public, own)


def _fitted(features: Tensor, classes: Tensor) -> nn.Linear:
    """Return a linear head that was fitted to the features (M, I) of images of these classes."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        head = nn.Linear(features.shape[1], CLASSES)
    adam = torch.optim.Adam(head.parameters(), lr=0.02, weight_decay=1e-4)
    for _ in range(HEAD_STEPS):
        adam.zero_grad()
        loss = nn.functional.cross_entropy(head(features), classes)
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
    return head


def _images(network: Network, images: data.ImageSet, seed: int, count: int) -> StandIns:
    """Return network inputs of images that are drawn at random, with their classes."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randperm(len(images.labels), generator=generator)[:count]
    pixels = torch.stack([images.pixels(int(i)) for i in drawn])
    return StandIns(network.normalisation.apply(pixels).float(), images.labels[drawn])


CASES: Mapping[str, Callable[[Shelf], CountCase]] = {
    "lenet trained": lambda shelf: ten_classes("lenet trained", shelf),
    "resnet20 converged": lambda shelf: ten_classes("resnet20 converged", shelf),
    "resnet18_cifar trained": lambda shelf: ten_classes("resnet18_cifar trained", shelf),
    "lenet, head of 100 classes": lambda shelf: hundred_classes("lenet trained", shelf),
}


def readers(case: CountCase, size: int, runs: int, one_by_one: bool) -> Mapping[str, Counts]:
    """Return what estimates the counts of a batch of this size, by title."""
    subject, classes = case.subject, case.subject.head.classes
    baseline, none = BatchReader.of(subject), torch.zeros(classes, dtype=torch.double)
    client = sl.Client(lr=0.01, steps=1)
    found: dict[str, Counts] = {
        "none": lambda share: none.long(),
        "even": lambda share: whole_counts(none + 1, none, size),
        "iLRG": lambda share: _known(baseline.read(share, size).counts, none),
    }
    for title, held in (("noise", None), ("images", case.public)):
        reader = ProportionReader.of(subject, client, size, held, runs)
        found[f"proportions from {title}"] = partial(_of_proportions, reader, size)
    if one_by_one and size < classes - 1:
        found["samples"] = partial(_of_samples, subject, size)
    return found


def _known(counts: Tensor | None, none: Tensor) -> Tensor:
    return none.long() if counts is None else counts


def _of_proportions(reader: ProportionReader, size: int, share: sl.GradientShare) -> Tensor:
    """Return whole numbers nearest to the estimated proportions."""
    part = reader.read(share).mean
    return whole_counts(part * size, torch.zeros_like(part), size)


def _of_samples(subject: Subject, size: int, share: sl.GradientShare) -> Tensor:
    """Return how often each class is among the samples that were found."""
    found = read_batch(subject, share, Knowledge(sl.OneHot(), samples=size))
    classes = [int(one.label.argmax()) for one in found.samples if one.label is not None]
    chosen = torch.tensor(classes, dtype=torch.long)
    return torch.bincount(chosen, minlength=subject.head.classes)


def scores(
    case: CountCase, size: int, batches: int, reading: Mapping[str, Counts]
) -> Iterator[tuple[str, float, float]]:
    """Yield label number accuracy and instance recall of each reader for each batch."""
    generator = torch.Generator().manual_seed(7000 + size)
    for _ in range(batches):
        drawn = torch.randperm(len(case.own.classes), generator=generator)[:size]
        x, y = case.own.images[drawn], case.own.classes[drawn]
        share = sl.capture(case.model, x, y)
        for title, read in reading.items():
            counts = read(share)
            true = torch.bincount(y, minlength=len(counts))  # the truth is read after the answer
            right = float((counts == true).double().mean())
            yield title, right, float(torch.minimum(counts, true).sum()) / size


def main() -> None:
    """Print a row for each network, size and reader."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the data packs")
    parser.add_argument("--weights", type=Path, help="folder of trained weights")
    parser.add_argument("--batches", type=int, default=50, help="batches per row")
    parser.add_argument("--sizes", type=int, nargs="+", default=[24, 64], help="batch sizes")
    parser.add_argument("--runs", type=int, default=60, help="simulated clients of a reader")
    parser.add_argument("--one-by-one", action="store_true", help="find every sample: slow")
    parser.add_argument("--only", default="", help="run this network alone")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| network | B | counts | label number accuracy | instance recall |\n|---|---|---|---|---|"
    )
    shelf = Shelf(given.data, given.weights)
    for name, build in CASES.items():
        if given.only not in ("", name):
            continue
        if name in NETWORKS and NETWORKS[name].lacking(shelf):
            continue
        case = build(shelf)
        for size in given.sizes:
            found: dict[str, list[tuple[float, float]]] = defaultdict(list)
            reading = readers(case, size, given.runs, given.one_by_one)
            for title, right, recall in scores(case, size, given.batches, reading):
                found[title].append((right, recall))
            for title, rows in found.items():
                right, recall = (mean(part) for part in zip(*rows, strict=True))
                print(f"| {name} | {size} | {title} | {right:.3f} | {recall:.3f} |", flush=True)


if __name__ == "__main__":
    main()
