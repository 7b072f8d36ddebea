"""Table 5: what noise costs a label, head only and with evidence, and the paper's PSO beside it.

python -m benchmarks.noisy_labels [--samples 100] [--init kaiming|default] [--methods …]
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import torch
from torch import Tensor, nn

import softleak as sl
from softleak import data, models
from softleak.defenses import Defense, GaussianNoise, LaplaceNoise
from softleak.head import find_head
from softleak.labels.classic import PUBLISHED_NOISE, Vectorised
from softleak.labels.classic.row import Row
from softleak.labels.evidence.relation import Relation

LEVELS = (1e-4, 1e-3, 1e-2, 1e-1, 3e-1)
NOISES: Mapping[str, Callable[[float, torch.Generator], Defense]] = {
    "Gaussian": GaussianNoise,
    "Laplace": LaplaceNoise,
}
PROTOCOLS = {"everything": False, "one row": True}
SHAPE = (3, 32, 32)
SEED = 1


@dataclass(frozen=True, eq=False)
class Setting:
    """An untrained ResNet-18 in its ImageNet form, smoothed CIFAR-10 images, and the truth.

    Shares hold the gradients that an attack reads: the head's and those of the evidence.
    """

    model: nn.Module
    head: sl.Head
    relations: tuple[Relation, ...]
    shares: tuple[sl.GradientShare, ...]
    truths: tuple[Tensor, ...]
    predictions: tuple[Tensor, ...]

    @classmethod
    def of(cls, samples: int, init: str, seed: int = 0) -> Setting:
        torch.manual_seed(seed)
        model = models.resnet18(classes=10).eval()
        if init == "kaiming":
            models.kaiming_(model)
        head = find_head(model, None, SHAPE)
        relations = sl.probe(model, SHAPE, head=head)
        read = {head.weight_name, *(relation.parameter for relation in relations)}
        shares, truths, predictions = [], [], []
        images = data.embedded()
        for sample in data.samples(images, data.Smoothing(), samples, seed, data.CIFAR10_NORM):
            share = sl.capture(model, sample.x, sample.y)
            shares.append(share.without(*(share.keys() - read)))
            truths.append(sample.y)
            with torch.no_grad():
                predictions.append(model(sample.x[None]).double().softmax(-1)[0])
        return cls(model, head, relations, tuple(shares), tuple(truths), tuple(predictions))

    def row(self, share: sl.GradientShare) -> int:
        """The paper's r: the row with the largest |sum|."""
        return int(share[self.head.weight_name].sum(1).abs().argmax())


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


Answer = tuple[float, Tensor | None, str]  # λ_r, the label, the status
Attack = Callable[[Setting, Sequence[sl.GradientShare]], list[Answer]]


def ours(setting: Setting, shares: Sequence[sl.GradientShare], *, evidence: bool) -> list[Answer]:
    found = sl.recover_labels(
        setting.model, shares, family=sl.Smoothed(), head=setting.head,
        evidence=setting.relations if evidence else False,
    )  # fmt: skip
    return [_answer(setting, r, setting.row(share)) for r, share in zip(found, shares, strict=True)]


def _answer(setting: Setting, found: sl.Recovery, row: int) -> Answer:
    if found.label is None or found.feature is None:
        return math.inf, None, found.status.name
    p = torch.softmax(setting.head.logits(found.feature[None])[0] + setting.head.b, -1)
    return 1 / float(p[row] - found.label[row]), found.label, found.status.name


def pso(setting: Setting, shares: Sequence[sl.GradientShare]) -> list[Answer]:
    """The paper's, with its settings: the best scalar of all intervals, and the label there."""
    search = replace(PUBLISHED_NOISE, objective=Vectorised)
    answers: list[Answer] = []
    for share in shares:
        best = search(setting.model, share, head=setting.head)
        seen = Row.of(setting.model, share, head=setting.head)
        if best.scalar is None or seen is None:
            answers.append((math.inf, None, best.outcome.name))
            continue
        scalar = torch.tensor(best.scalar, dtype=torch.double)
        label = Vectorised(seen, search.loss).label(scalar)
        answers.append((best.scalar, label, best.outcome.name))
    return answers


@dataclass(frozen=True)
class Score:
    """One answer: is |λ_r − λ_r*| < 1, is the class right, the L1 error, the status."""

    scalar: bool
    right: bool
    error: float
    status: str

    @classmethod
    def of(cls, setting: Setting, index: int, row: int, answer: Answer) -> Score:
        scalar, label, status = answer
        y, p = setting.truths[index], setting.predictions[index]
        close = abs(scalar - 1 / float(p[row] - y[row])) < 1
        if label is None:
            return cls(close, False, math.inf, status)
        right = int(label.argmax()) == int(y.argmax())
        return cls(close, right, float((label - y).abs().sum()), status)


def sent(setting: Setting, one_row: bool, noise: Defense) -> Iterator[sl.GradientShare]:
    """Every share as its client would send it."""
    name = setting.head.weight_name
    for share in setting.shares:
        defense = OneRow(noise, name, setting.row(share)) if one_row else noise
        yield defense(share)


ATTACKS: Mapping[str, Attack] = {
    "head-only": partial(ours, evidence=False),
    "evidence": partial(ours, evidence=True),
    "pso": pso,
}


def line(where: str, kind: str, size: float, name: str, scores: Sequence[Score]) -> str:
    total = len(scores)
    close = 100 * sum(s.scalar for s in scores) / total
    right = 100 * sum(s.right for s in scores) / total
    error = statistics.median(s.error for s in scores)
    counted = Counter(s.status for s in scores)
    statuses = ", ".join(f"{n} {status}" for status, n in counted.most_common())
    return (
        f"| {where} | {kind} | {size:.0e} | {name} | {close:.0f} % | {right:.0f} % | {error:.1e} "
        f"| {statuses} |"
    )


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--init", choices=["kaiming", "default"], default="kaiming")
    parser.add_argument("--levels", type=float, nargs="+", default=LEVELS)
    parser.add_argument("--methods", nargs="+", choices=list(ATTACKS), default=list(ATTACKS))
    given = parser.parse_args()
    setting = Setting.of(given.samples, given.init)
    print("| noise on | kind | std | method | λ_r | class | median L1 | status |")
    print("|---|---|---|---|---|---|---|---|")
    attacks = [(name, ATTACKS[name]) for name in given.methods]
    cells = product(attacks, PROTOCOLS.items(), NOISES.items(), given.levels)
    for (name, attack), (where, one_row), (kind, noise), size in cells:
        shares = list(sent(setting, one_row, noise(size, torch.Generator().manual_seed(SEED))))
        scores = [
            Score.of(setting, index, setting.row(share), answer)
            for index, (share, answer) in enumerate(
                zip(shares, attack(setting, shares), strict=True)
            )
        ]
        print(line(where, kind, size, name, scores), flush=True)


if __name__ == "__main__":
    main()
