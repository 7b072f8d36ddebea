"""The tables of labels: Tables 1, 2 and 5, and one of our own for every sample of a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from itertools import product
from typing import ClassVar

import torch
from torch import Tensor

from softleak.audit.metrics import label_error
from softleak.batches.recover import read_batch
from softleak.core.head import Head
from softleak.core.knowledge import Knowledge
from softleak.core.results import BatchRecovery, Recovery, Status
from softleak.core.share import GradientShare
from softleak.defenses.defense import Defense, GaussianNoise, LaplaceNoise
from softleak.labels.recover import recover
from softleak.matching.tasks import HardLabel, Seen
from softleak.paper.classic import PUBLISHED_NOISE, RowRatios, Vectorised
from softleak.paper.data.samples import Sample, numbered_generator
from softleak.paper.experiment import Cell, Column, Experiment, Unit
from softleak.paper.networks import (
    MIXED,
    ONE_HOT,
    SEEDS,
    SMOOTHED,
    AttackedNetwork,
    AugmentationKind,
)
from softleak.paper.sweep import Measures

LABEL_TOLERANCE = 1e-3  # the L1 distance below which an answer counts as the true label
ACCURACY, ERROR, IDLG = "accuracy", "L1", "iDLG"
ACCURACIES = (
    Column("head only", "head_exact", Unit.PERCENT, ACCURACY),
    Column("whole share", "whole_exact", Unit.PERCENT, ACCURACY),
)
ERRORS = (
    Column("L1, head only", "head_L1", Unit.SMALL, ERROR, higher=False),
    Column("L1, whole share", "whole_L1", Unit.SMALL, ERROR, higher=False),
)


def each_way(scores: Mapping[str, Measures]) -> Measures:
    """Return the measures of several ways to attack one share, named after way and measure."""
    return {f"{way}_{name}": v for way, one in scores.items() for name, v in one.items()}


@dataclass(frozen=True)
class KindCell(Cell):
    """A cell that attacks one network with one kind of label."""

    kind: AugmentationKind  # how labels are made, and the family that the attacker assumes
    _: KW_ONLY
    samples: int = 1000

    @property
    def name(self) -> str:
        return f"{self.subject}, {self.kind.name}"


@dataclass(frozen=True)
class LabelCell(KindCell):
    """A cell that recovers labels of a kind that the attacker knows."""

    def measured(self, target: AttackedNetwork, number: int, repeat: int) -> Measures:
        sample = target.sample(self.kind.augmentation, number, repeat)
        share = target.share(sample)
        ways = {
            "head": Knowledge(self.kind.family, head_only=True),
            "whole": Knowledge(self.kind.family),
        }
        found = {way: recover(target.subject, [share], known)[0] for way, known in ways.items()}
        measures = each_way({way: scored(answer, sample) for way, answer in found.items()})
        if self.kind != ONE_HOT:  # not `is not`: a worker process holds a copy
            return measures
        return {**measures, "idlg_exact": _idlg(target, share) == int(sample.y.argmax())}


def _idlg(target: AttackedNetwork, share: GradientShare) -> int | None:
    """Return the class as iDLG's code reads it, from the lowest row; None of a zero gradient."""
    if not share[target.head.weight_name].any():
        return None
    found = HardLabel().start(Seen(target.head, share, None))
    return None if found is None else int(found.value.argmax())


def scored(recovery: Recovery, sample: Sample) -> Measures:
    """Compare an answer with the true label. As in the paper, only UNIQUE ones have an error."""
    unique = recovery.status is Status.UNIQUE
    error = label_error(recovery, sample.y)
    return {
        "status": recovery.status.name,
        "exact": unique and error < LABEL_TOLERANCE,
        "L1": error if unique else None,
    }


TABLE1 = Experiment(
    "table1",
    "Table 1: labels recovered on an untrained ResNet50",
    tuple(
        LabelCell(f"resnet50 on {source}", kind)
        for source in ("cifar100", "flowers", "imagenet")
        for kind in (SMOOTHED, MIXED, ONE_HOT)
    ),
    (*ACCURACIES, Column("iDLG, by us", "idlg_exact", Unit.PERCENT, IDLG)),
    samples=20,
)


MEASURED_NETWORKS = (
    "lenet", "lenet trained", "resnet18", "resnet18_cifar trained", "alexnet", "alexnet trained",
    "resnet18 on flowers", "resnet18 on flowers trained",
)  # fmt: skip

TABLE2 = Experiment(
    "table2",
    "Table 2: labels recovered on untrained and trained networks",
    tuple(LabelCell(*cell) for cell in product(MEASURED_NETWORKS, (SMOOTHED, MIXED))),
    (*ACCURACIES, *ERRORS),
    samples=50,
)


# Table 5. What the paper calls the variance of the noise is its standard deviation.
SCALAR_TOLERANCE = 1.0  # the paper counts a success if |λ_r − λ_r*| is below this


@dataclass(frozen=True, eq=False)
class Answer:
    """What an attack says of one share."""

    scalar: float  # the scalar λ_r; infinite if the attack found nothing
    label: Tensor | None  # the label (C,); None if the attack found nothing
    status: str  # the status of the attack in a word


def chosen_row(share: GradientShare, head: Head) -> int:
    """Return the paper's r, the row of the head's gradient whose sum has the largest size."""
    return int(share[head.weight_name].sum(1).abs().argmax())


def read(recovery: Recovery, head: Head, row: int) -> Answer:
    """Return what a recovery says of λ_r, the scalar that belongs to row r."""
    if recovery.label is None or recovery.feature is None:
        return Answer(math.inf, None, recovery.status.name)
    p = torch.softmax(head.logits(recovery.feature[None])[0] + head.b, -1)
    return Answer(1 / float(p[row] - recovery.label[row]), recovery.label, recovery.status.name)


def pso(target: AttackedNetwork, share: GradientShare) -> Answer:
    """Return the best scalar of the paper's particle swarm as published, and the label there."""
    search = replace(PUBLISHED_NOISE, objective=Vectorised)
    best = search(target.model, share, head=target.head)
    seen = RowRatios.of(target.model, share, head=target.head)
    if best.scalar is None or seen is None:
        return Answer(math.inf, None, best.outcome.name)
    scalar = torch.tensor(best.scalar, dtype=torch.double)
    return Answer(best.scalar, Vectorised(seen, search.loss).label(scalar), best.outcome.name)


def scored_scalar(answer: Answer, scalar_true: float, y_true: Tensor) -> Measures:
    """Return how an answer compares with the true scalar λ_r* and the true label (C,)."""
    gap = abs(answer.scalar - scalar_true)
    label = answer.label
    return {
        "status": answer.status,
        "close": gap < SCALAR_TOLERANCE,
        # The paper's L_s is a mean over successes, as its code computes it.
        "gap": gap if gap < SCALAR_TOLERANCE else None,
        "class": label is not None and int(label.argmax()) == int(y_true.argmax()),
        "L1": None if label is None else float((label - y_true).abs().sum()),
    }


def on_one_row(share: GradientShare, noisy: GradientShare, weight: str, row: int) -> GradientShare:
    """Return the share with the noise of one row of the head's gradient: the paper's protocol."""

    def change(name: str, g: Tensor) -> Tensor:
        chosen = torch.arange(len(g)) == row
        return torch.where(chosen[:, None], noisy[name], g) if name == weight else g

    return share.map(change)


NoiseKind = Callable[[float, torch.Generator], Defense]  # of a standard deviation and a source


@dataclass(frozen=True)
class NoiseCell(Cell):
    """A cell that recovers smoothed labels under one kind and size of noise."""

    kind: str  # the name of the noise
    noise: NoiseKind  # the function that makes the defence
    std: float  # the standard deviation of the noise
    _: KW_ONLY
    samples: int = 100

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.std:.0e}"

    def measured(self, target: AttackedNetwork, number: int, repeat: int) -> Measures:
        sample = target.sample(SMOOTHED.augmentation, number, repeat)
        noise = self.noise(self.std, numbered_generator(SEEDS.noise + repeat, number))
        share = target.share(sample)
        row = chosen_row(share, target.head)
        everything = noise(share)
        one_row = on_one_row(share, noise(share), target.head.weight_name, row)
        answers = {
            "head": _ours(target, everything, head_only=True),
            "whole": _ours(target, everything, head_only=False),
            "one_row": _ours(target, one_row, head_only=True),
            "pso": pso(target, everything),
            "pso_one_row": pso(target, one_row),
        }
        with torch.no_grad():
            p = target.model(sample.x[None]).double().softmax(-1)[0]
        scalar_true = 1 / float(p[row] - sample.y[row])
        return each_way({w: scored_scalar(a, scalar_true, sample.y) for w, a in answers.items()})


def _ours(target: AttackedNetwork, share: GradientShare, *, head_only: bool) -> Answer:
    """Return softleak's answer, from the head's gradient alone or from the whole share."""
    known = Knowledge(SMOOTHED.family, head_only=head_only)
    (found,) = recover(target.subject, [share], known)
    return read(found, target.head, chosen_row(share, target.head))


CLOSE_SHARE, SCALAR_GAP = "close", "gap"  # the names of the paper's values
NOISES: Mapping[str, NoiseKind] = {"Gaussian": GaussianNoise, "Laplace": LaplaceNoise}
NOISE_STDS = (1e-4, 1e-3, 1e-2, 1e-1, 3e-1)  # the last one is beyond the paper's

TABLE5 = Experiment(
    "table5",
    "Table 5: labels recovered under noise",
    tuple(
        NoiseCell("resnet18 kaiming", kind, noise, std)
        for kind, noise in NOISES.items()
        for std in NOISE_STDS
    ),
    (
        Column("noise on all, head", "head_close", Unit.PERCENT, CLOSE_SHARE),
        Column("noise on all, whole", "whole_close", Unit.PERCENT, CLOSE_SHARE),
        Column("noise on one row", "one_row_close", Unit.PERCENT, CLOSE_SHARE),
        Column("PSO by us, on all", "pso_close", Unit.PERCENT),
        Column("PSO by us, on one row", "pso_one_row_close", Unit.PERCENT, CLOSE_SHARE),
        Column("L_s, one row", "one_row_gap", Unit.SMALL, SCALAR_GAP, higher=False),
        Column("class right, noise on all", "head_class", Unit.PERCENT),
        Column("label's L1, noise on all", "head_L1", Unit.SMALL),
        Column("label's L1, whole share", "whole_L1", Unit.SMALL),
    ),
    samples=20,
)  # fmt: skip


RIGHT_PART, PROVED_PART, WRONG_COUNT = "right", "proved", "wrong_unique"


@dataclass(frozen=True)
class BatchCell(KindCell):
    """A cell that recovers every sample of batches of one size; the paper has none."""

    everything: ClassVar[bool] = True
    evidence: ClassVar[bool] = False

    size: int  # the number of samples in a batch, which the attacker knows
    _: KW_ONLY
    samples: int = 100  # the number of batches in one repetition

    @property
    def name(self) -> str:
        return f"{super().name}, B={self.size}"

    def measured(self, target: AttackedNetwork, number: int, repeat: int) -> Measures:
        drawn, share = target.batch(self.kind.augmentation, self.size, number, repeat)
        found = read_batch(target.subject, share, Knowledge(self.kind.family, samples=self.size))
        return scored_batch(found, torch.stack([one.y for one in drawn]))


def scored_batch(found: BatchRecovery, y: Tensor) -> Measures:
    """Return how the samples that were found compare with the true labels (B, C)."""
    labels = [one.label for one in found.samples if one.label is not None]
    off = torch.cdist(y, torch.stack(labels), p=1) if labels else y.new_full((len(y), 1), torch.inf)
    claimed = [one.label for one in found.proved if one.label is not None]
    wrong = sum(float((y - label).abs().sum(1).min()) >= LABEL_TOLERANCE for label in claimed)
    return {
        "status": found.status.name,
        RIGHT_PART: int((off.amin(1) < LABEL_TOLERANCE).sum()) / len(y),
        PROVED_PART: len(claimed) / len(y),
        WRONG_COUNT: wrong,
    }


MEASURED = (  # networks, kinds of label and sizes that are combined
    (
        ("lenet trained", "resnet18_cifar", "resnet18_cifar trained"),
        (ONE_HOT, SMOOTHED, MIXED),
        (2, 3, 4),
    ),
    (("resnet20 converged", "resnet56 converged"), (ONE_HOT, SMOOTHED), (2, 4)),
    (("lenet on cifar100",), (ONE_HOT, SMOOTHED), (2, 4, 8)),
)

BATCH_TABLE = Experiment(
    "batches",
    "Every sample of a batch: labels from one share (not in the paper)",
    tuple(BatchCell(*cell) for group in MEASURED for cell in product(*group)),
    (
        Column("right", RIGHT_PART, Unit.PERCENT),
        Column("proved", PROVED_PART, Unit.PERCENT),
        Column("wrong UNIQUE", WRONG_COUNT, Unit.PLAIN, higher=False),
    ),
    samples=10,
)
