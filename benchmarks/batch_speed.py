"""Part four, batches: the time per batch against a naive attack, and how it grows with B and C.

It prints ratios and no seconds: `python -m benchmarks.batch_speed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import softleak as sl
from benchmarks.goals import Goal, ratio, run_alone
from benchmarks.naive_batch import NaiveHead, naive_batch
from benchmarks.timing import Contestant, race
from softleak.batches.recover import read_batch
from softleak.core.knowledge import Knowledge
from softleak.core.subject import Subject
from softleak.paper import data, models

BATCH_CELLS = ((10, 2), (10, 3), (10, 4), (100, 2), (100, 4), (100, 8))  # classes and batch size
WANTED = {(10, 4): 3.0, (100, 8): 6.0}
BATCHES = 5  # per cell
OURS, NAIVE = "recover_batch", "naive"


@dataclass(frozen=True, eq=False)
class BatchSource:
    """A network with smoothed batches of real images, and what both attacks know of it."""

    model: nn.Module
    classes: int
    size: int

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Return inputs and labels; of more than ten classes the labels are drawn."""
        stream = data.samples(
            data.embedded(), data.Smoothing(), self.size, 900 + number, data.CIFAR10_NORM
        )
        drawn = list(stream)
        x = torch.stack([one.x.reshape(3, 32, 32) for one in drawn]).float()
        if self.classes == 10:
            return x, torch.stack([one.y.flatten() for one in drawn]).float()
        generator = torch.Generator().manual_seed(number)
        chosen = torch.randperm(self.classes, generator=generator)[: self.size]
        weight = 0.5 * torch.rand(self.size, 1, generator=generator)
        y = weight / self.classes + (1 - weight) * torch.eye(self.classes)[chosen]
        return x, y

    @property
    def naive(self) -> NaiveHead:
        """Return what the naive attack knows: the head, and features of images to start from."""
        head = Subject.of(self.model, (3, 32, 32)).head
        stream = data.samples(data.embedded(), data.Hard(), 100, 99, data.CIFAR10_NORM)
        x = torch.stack([one.x.reshape(3, 32, 32) for one in stream]).float()
        with torch.no_grad():
            features = self.model.features(x).flatten(1)  # type: ignore[operator]
        return NaiveHead(head.W, head.b, features)


def _model(classes: int) -> nn.Module:
    if classes == 10:
        return models.trained_lenet().eval()
    torch.manual_seed(0)
    return models.uniform_(models.lenet(classes=classes)).eval()


def run(console: Console) -> list[Goal]:
    """Time every cell, print the table and return the goals."""
    table = Table(
        title="Batches, smoothed labels: time over that of recover_batch at B = 2, C = 10"
    )
    for column in ("classes", "B", OURS, NAIVE, "naive / ours", "right, ours", "right, naive"):
        table.add_column(column, justify="right")
    goals, unit = [], 0.0
    for classes, size in BATCH_CELLS:
        ours, naive, gain, right = _cell(BatchSource(_model(classes), classes, size))
        unit = unit or ours
        table.add_row(
            str(classes), str(size), ratio(ours / unit), ratio(naive / unit), ratio(gain),
            f"{right[0]:.0%}", f"{right[1]:.0%}",
        )  # fmt: skip
        if (classes, size) in WANTED:
            what = f"batch of {size} at {classes} classes: {NAIVE} / {OURS}"
            goals.append(Goal(what, gain, WANTED[classes, size]))
    console.print(table)
    return goals


def _cell(source: BatchSource) -> tuple[float, float, float, tuple[float, float]]:
    """Return median times of both, their ratio, and the parts of the labels that are right."""
    batches = [source.batch(number) for number in range(BATCHES)]
    shares = [sl.capture(source.model, x, y) for x, y in batches]
    subject, naive = Subject.of(source.model, (3, 32, 32)), source.naive
    knowledge = Knowledge(sl.Smoothed(), samples=source.size)
    name = subject.head.weight_name

    def ours(number: int) -> Tensor:
        found = read_batch(subject, shares[number % BATCHES], knowledge).samples
        labels = [one.label for one in found if one.label is not None]
        return torch.stack(labels) if labels else torch.zeros(0, source.classes)

    def theirs(number: int) -> Tensor:
        return naive_batch(naive, shares[number % BATCHES][name], source.size, number)

    made = race([Contestant(OURS, ours, 60.0), Contestant(NAIVE, theirs, 600.0)], rounds=BATCHES)
    right = partial(_right, truths=[y.double() for _, y in batches])
    seconds = [sorted(made[one].seconds)[len(made[one].seconds) // 2] for one in (OURS, NAIVE)]
    parts = right(made[OURS].answers), right(made[NAIVE].answers)
    return seconds[0], seconds[1], made[NAIVE].over(made[OURS]), parts


def _right(answers: tuple[Tensor, ...], truths: list[Tensor]) -> float:
    """Return the part of the labels that are within 1e-3 of what was found."""
    hits = [
        torch.cdist(y, found.double(), p=1).amin(1) < 1e-3 if len(found) else torch.zeros(len(y))
        for found, y in zip(answers, truths, strict=False)
    ]
    return float(torch.cat([one.double() for one in hits]).mean())


if __name__ == "__main__":
    run_alone(run)
