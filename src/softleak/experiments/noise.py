"""Cells of Table 5: what noise costs a label, on everything that is sent and on one row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

import softleak as sl
from softleak.data import Sample, numbered_generator
from softleak.defenses import Defense
from softleak.experiments.experiment import Attack
from softleak.experiments.kinds import SMOOTHED
from softleak.experiments.networks import NETWORKS, Network
from softleak.experiments.shelf import Shelf
from softleak.experiments.target import Target
from softleak.labels.classic import PUBLISHED_NOISE, Vectorised
from softleak.labels.classic.row import Row
from softleak.sweep import Measures

Noise = Callable[[float, torch.Generator], Defense]
CLOSE = 1.0  # the paper's success: |λ_r − λ_r*| below this
NOISE_SEED = 2


@dataclass(frozen=True, eq=False)
class Answer:
    """λ_r, the label (C,) and the status of an attack; infinite and None if it found nothing."""

    scalar: float
    label: Tensor | None
    status: str


@dataclass(frozen=True)
class OneRow:
    """The paper's protocol: noise on the chosen row of the head's gradient only."""

    noise: Defense
    weight: str
    row: int

    def __call__(self, share: sl.GradientShare) -> sl.GradientShare:
        noisy = self.noise(share)[self.weight]

        def change(name: str, g: Tensor) -> Tensor:
            if name != self.weight:
                return g
            chosen = torch.arange(len(g)) == self.row
            return torch.where(chosen[:, None], noisy, g)

        return share.map(change)


def chosen_row(share: sl.GradientShare, head: sl.Head) -> int:
    """The paper's r: the row with the largest |sum|."""
    return int(share[head.weight_name].sum(1).abs().argmax())


def read(recovery: sl.Recovery, head: sl.Head, row: int) -> Answer:
    """What a recovery says of λ_r."""
    if recovery.label is None or recovery.feature is None:
        return Answer(math.inf, None, recovery.status.name)
    p = torch.softmax(head.logits(recovery.feature[None])[0] + head.b, -1)
    return Answer(1 / float(p[row] - recovery.label[row]), recovery.label, recovery.status.name)


def pso(target: Target, share: sl.GradientShare) -> Answer:
    """The paper's, with its settings: the best scalar of all intervals, and the label there."""
    search = replace(PUBLISHED_NOISE, objective=Vectorised)
    best = search(target.model, share, head=target.head)
    seen = Row.of(target.model, share, head=target.head)
    if best.scalar is None or seen is None:
        return Answer(math.inf, None, best.outcome.name)
    scalar = torch.tensor(best.scalar, dtype=torch.double)
    return Answer(best.scalar, Vectorised(seen, search.loss).label(scalar), best.outcome.name)


def scored(answer: Answer, scalar_true: float, y_true: Tensor) -> Measures:
    """An answer beside the truth."""
    gap = abs(answer.scalar - scalar_true)
    label = answer.label
    return {
        "status": answer.status,
        "close": gap < CLOSE,
        "gap": gap if gap < CLOSE else None,  # the paper's L_s, as its code has it: of successes
        "class": label is not None and int(label.argmax()) == int(y_true.argmax()),
        "L1": None if label is None else float((label - y_true).abs().sum()),
    }


@dataclass(frozen=True)
class NoiseCell:
    """A kind of noise and its standard deviation."""

    kind: str
    noise: Noise
    std: float
    paper: Mapping[str, float] = field(hash=False)
    samples: int = 100
    together: int = 1
    subject: str = "resnet18 kaiming"

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.std:.0e}"

    @property
    def network(self) -> Network:
        return NETWORKS[self.subject]

    def prepare(self, shelf: Shelf) -> Attack:
        target = Target.of(self.network, shelf)

        def attack(numbers: Sequence[int], repeat: int) -> Iterator[Measures]:
            for number in numbers:
                sample = target.sample(SMOOTHED.augmentation, number, repeat)
                noise = self.noise(self.std, numbered_generator(NOISE_SEED + repeat, number))
                yield self._measured(target, sample, noise)

        return attack

    def _measured(self, target: Target, sample: Sample, noise: Defense) -> Measures:
        share = target.share(sample)
        row = chosen_row(share, target.head)
        everything = noise(share)
        one_row = OneRow(noise, target.head.weight_name, row)(share)
        answers = {
            "head": _ours(target, everything, evidence=False),
            "whole": _ours(target, everything, evidence=True),
            "one_row": _ours(target, one_row, evidence=False),
            "pso": pso(target, everything),
            "pso_one_row": pso(target, one_row),
        }
        with torch.no_grad():
            p = target.model(sample.x[None]).double().softmax(-1)[0]
        scalar_true = 1 / float(p[row] - sample.y[row])
        return {
            f"{way}_{name}": value
            for way, answer in answers.items()
            for name, value in scored(answer, scalar_true, sample.y).items()
        }


def _ours(target: Target, share: sl.GradientShare, *, evidence: bool) -> Answer:
    found = sl.recover_label(
        target.model, share, family=SMOOTHED.family, head=target.head,
        evidence=target.relations if evidence else False,
    )  # fmt: skip
    return read(found, target.head, chosen_row(share, target.head))
