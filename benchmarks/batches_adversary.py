"""Send batches that are not what is said of them, and count labels that are proved wrongly.

python -m benchmarks.batches_adversary --data DIR --batches 25 [--networks "lenet trained"]

A label is wrong if it is called UNIQUE and no sample of the batch has one within 1e-3 of it in L1.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import softleak as sl
from benchmarks.batches import KINDS, RIGHT, batch_of
from softleak.batches.recover import read_batch
from softleak.core.knowledge import Knowledge
from softleak.core.subject import Subject
from softleak.paper.data import ImageSet
from softleak.paper.networks import NETWORKS, Network, Shelf


@dataclass(frozen=True, eq=False)
class Sent:
    """What a client sends, what the attacker believes of it, and the true labels (B, C)."""

    share: sl.GradientShare
    knowledge: Knowledge
    truth: Tensor


@dataclass(frozen=True, eq=False)
class Source:
    """Where batches come from: a network, its images and one kind of label."""

    network: Network
    model: nn.Module
    images: ImageSet
    kind: str

    def draw(self, size: int, number: int) -> tuple[Tensor, Tensor]:
        """Return inputs and labels of one batch."""
        return batch_of(self.network, self.images, KINDS[self.kind][0], size, number)

    def sent(self, x: Tensor, y: Tensor, **known: object) -> Sent:
        """Return the gradient of a batch with what is believed of it."""
        family = KINDS[self.kind][1]
        knowledge = Knowledge(**{"family": family, "samples": len(x), **known})  # type: ignore[arg-type]
        return Sent(sl.capture(self.model, x, y), knowledge, y.double())


def duplicates(source: Source, number: int) -> Sent:
    """Two of four samples are equal."""
    x, y = source.draw(3, number)
    return source.sent(torch.cat([x, x[:1]]), torch.cat([y, y[:1]]))


def uncounted_duplicates(source: Source, number: int) -> Sent:
    """Two of four samples are equal, and nobody says how many there are."""
    x, y = source.draw(3, number)
    return source.sent(torch.cat([x, x[:1]]), torch.cat([y, y[:1]]), samples=None)


def same_input(source: Source, number: int) -> Sent:
    """Two of four samples have one input and different labels."""
    x, y = source.draw(4, number)
    return source.sent(torch.cat([x[:3], x[:1]]), y, samples=None)


def one_class(source: Source, number: int) -> Sent:
    """All four samples are of one class."""
    chosen = [source.draw(1, 40 * number + i) for i in range(40)]
    first = int(chosen[0][1].argmax())
    alike = [(x, y) for x, y in chosen if int(y.argmax()) == first][:4]
    return source.sent(torch.cat([x for x, _ in alike]), torch.cat([y for _, y in alike]))


def too_many(source: Source, number: int) -> Sent:
    """There are more samples than classes."""
    return source.sent(*source.draw(12, number))


def said_fewer(source: Source, number: int) -> Sent:
    """Three samples are announced as two."""
    return source.sent(*source.draw(3, number), samples=2)


def said_more(source: Source, number: int) -> Sent:
    """Three samples are announced as four."""
    return source.sent(*source.draw(3, number), samples=4)


def noisy(source: Source, number: int) -> Sent:
    """Noise of 1e-7 to 1e-4 lies on every entry, and nobody says so."""
    sent = source.sent(*source.draw(3, number))
    level = 10.0 ** (-7 + number % 4)
    generator = torch.Generator().manual_seed(number)
    held = {k: g + level * torch.randn(g.shape, generator=generator) for k, g in sent.share.items()}
    share = sl.GradientShare(held, source.network.input_shape)
    return Sent(share, sent.knowledge, sent.truth)


def clipped(source: Source, number: int) -> Sent:
    """The gradient is clipped to a part of its norm, and nobody says so."""
    sent = source.sent(*source.draw(3, number))
    return Sent(sent.share.scaled(0.2 + 0.07 * (number % 10)), sent.knowledge, sent.truth)


def clipped_and_said(source: Source, number: int) -> Sent:
    """The gradient is clipped, and its scale is called unknown."""
    sent = source.sent(*source.draw(3, number), scale="unknown")
    return Sent(sent.share.scaled(0.2 + 0.07 * (number % 10)), sent.knowledge, sent.truth)


def one_step_more(source: Source, number: int) -> Sent:
    """The client took two steps of SGD where one is assumed; the share is their mean."""
    x, y = source.draw(3, number)
    first = source.sent(x, y)
    moved = copy.deepcopy(source.model)
    rate = 10.0 ** (-4 + number % 4)
    with torch.no_grad():
        for name, weight in moved.named_parameters():
            weight.sub_(rate * first.share[name])
    then = sl.capture(moved, x, y)
    held = {name: (g + then[name]) / 2 for name, g in first.share.items()}
    share = sl.GradientShare(held, source.network.input_shape)
    return Sent(share, first.knowledge, first.truth)


def mixed_within(source: Source, number: int) -> Sent:
    """Every input and label is mixed with the next one of the batch, each by its own part."""
    x, y = source.draw(3, number)
    part = torch.rand(3, generator=torch.Generator().manual_seed(number))
    mixed = [
        part.view(-1, *[1] * (each.ndim - 1)) * each
        + (1 - part).view(-1, *[1] * (each.ndim - 1)) * each.roll(1, 0)
        for each in (x, y)
    ]
    return source.sent(mixed[0], mixed[1], family=None)


def weighed_clients(source: Source, number: int) -> Sent:
    """Two clients of two samples are added up with weights that nobody says."""
    one, other = (source.sent(*source.draw(2, 2 * number + i)) for i in (0, 1))
    weight = 0.1 + 0.08 * (number % 10)
    held = {k: weight * g + (1 - weight) * other.share[k] for k, g in one.share.items()}
    share = sl.GradientShare(held, source.network.input_shape)
    known = Knowledge(one.knowledge.family, samples=4)
    return Sent(share, known, torch.cat([one.truth, other.truth]))


def micro_batches(source: Source, number: int) -> Sent:
    """Two steps with momentum on one sample each, sent as the mean of what moved."""
    x, y = source.draw(2, number)
    first = source.sent(x[:1], y[:1])
    moved, rate = copy.deepcopy(source.model), 10.0 ** (-5 + number % 5)
    with torch.no_grad():
        for name, weight in moved.named_parameters():
            weight.sub_(rate * first.share[name])
    then = sl.capture(moved, x[1:], y[1:])
    held = {name: (1.9 * g + then[name]) / 2 for name, g in first.share.items()}
    share = sl.GradientShare(held, source.network.input_shape)
    return Sent(share, Knowledge(first.knowledge.family, samples=2), y.double())


def many_duplicates(source: Source, number: int) -> Sent:
    """Two of sixteen samples are equal."""
    x, y = source.draw(15, number)
    return source.sent(torch.cat([x, x[:1]]), torch.cat([y, y[:1]]))


def many_said_fewer(source: Source, number: int) -> Sent:
    """Sixteen samples are announced as fifteen."""
    return source.sent(*source.draw(16, number), samples=15)


def many_said_more(source: Source, number: int) -> Sent:
    """Sixteen samples are announced as seventeen."""
    return source.sent(*source.draw(16, number), samples=17)


CASES: Mapping[str, Callable[[Source, int], Sent]] = {
    "duplicates": duplicates,
    "duplicates, size not said": uncounted_duplicates,
    "one input, two labels": same_input,
    "one class throughout": one_class,
    "more samples than classes": too_many,
    "size said too small": said_fewer,
    "size said too large": said_more,
    "noise": noisy,
    "clipping": clipped,
    "clipping, scale unknown": clipped_and_said,
    "one local step more": one_step_more,
    "mixed within the batch": mixed_within,
    "two clients with other weights": weighed_clients,
    "micro-batches with momentum": micro_batches,
    "duplicates among sixteen": many_duplicates,
    "sixteen said to be fifteen": many_said_fewer,
    "sixteen said to be seventeen": many_said_more,
}


def count(sent: Sent, subject: Subject) -> tuple[int, int]:
    """Return how many labels were proved of one batch, and how many of them are wrong."""
    found = read_batch(subject, sent.share, sent.knowledge)
    labels = [one.label for one in found.proved if one.label is not None]
    off = [float((sent.truth - label).abs().sum(1).min()) for label in labels]
    return len(labels), sum(distance >= RIGHT for distance in off)


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the data packs")
    parser.add_argument("--weights", type=Path, help="folder of trained weights")
    parser.add_argument("--batches", type=int, default=25, help="batches per cell")
    parser.add_argument("--networks", nargs="*", default=["lenet trained", "resnet20 converged"])
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--cases", nargs="*", default=list(CASES), help="only these cases")
    given = parser.parse_args()
    torch.set_num_threads(1)
    shelf = Shelf(given.data, given.weights)
    print(
        "| network | labels | case | samples | proved | wrong UNIQUE |\n|---|---|---|---|---|---|"
    )
    for name in given.networks:
        network = NETWORKS[name]
        model, images = network.build(shelf), shelf.images(network.source)
        subject = Subject.of(model, network.input_shape)
        for kind in given.kinds:
            source = Source(network, model, images, kind)
            for title in given.cases:
                case = CASES[title]
                sent = [case(source, number) for number in range(given.batches)]
                counts = [count(one, subject) for one in sent]
                samples, proved = sum(len(one.truth) for one in sent), sum(n for n, _ in counts)
                wrong = sum(n for _, n in counts)
                row = f"{name} | {kind} | {title} | {samples} | {proved} | {wrong}"
                print(f"| {row} |", flush=True)


if __name__ == "__main__":
    main()
