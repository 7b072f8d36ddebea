"""A table of its own: the labels of every sample of a batch, from one share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product

import torch
from torch import Tensor

from softleak.audit.metrics import label_error
from softleak.batches.recover import read_batch
from softleak.core.client import capture
from softleak.core.knowledge import Knowledge
from softleak.core.results import BatchRecovery, Recovery, Status
from softleak.core.share import GradientShare
from softleak.labels.recover import recover
from softleak.matching.tasks import HardLabel, Seen
from softleak.paper.data.samples import Sample
from softleak.paper.experiment import Attack, Column, Experiment, Unit
from softleak.paper.networks import (
    MIXED,
    NETWORKS,
    ONE_HOT,
    SMOOTHED,
    AttackedNetwork,
    AugmentationKind,
    Network,
    Shelf,
)
from softleak.paper.sweep.records import Measures


@dataclass(frozen=True)
class KindCell:
    """A cell that attacks one network with one kind of label, sample by sample.

    Attributes:
        subject: the name of the network in ``NETWORKS``.
        kind: how labels are made, and the family that the attacker assumes.
        paper: the paper's values, by the name that a column refers to.
        samples: the number of samples that the paper has in one repetition.
        together: the number of samples in one batch.
    """

    subject: str
    kind: AugmentationKind
    paper: Mapping[str, float] = field(hash=False)
    samples: int = 1000
    together: int = 1

    @property
    def name(self) -> str:
        """The name of the cell in tables and records."""
        return f"{self.subject}, {self.kind.name}"

    @property
    def network(self) -> Network:
        """The network that is attacked."""
        return NETWORKS[self.subject]

    def one_by_one(self, target: AttackedNetwork, measured: Callable[[Sample], Measures]) -> Attack:
        """Return the attack that draws and measures one sample after the other.

        Args:
            target: the network that is attacked.
            measured: the function that attacks one sample and scores the answer.
        """

        def attack(numbers: Sequence[int], repeat: int) -> Iterator[Measures]:
            for number in numbers:
                yield measured(target.sample(self.kind.augmentation, number, repeat))

        return attack


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


@dataclass(frozen=True)
class LabelCell(KindCell):
    """A cell that recovers labels of a kind that the attacker knows."""

    def prepare(self, shelf: Shelf) -> Attack:
        """Return the attack on the labels of this cell's network."""
        target = AttackedNetwork.of(self.network, shelf)
        return self.one_by_one(target, partial(self._measured, target))

    def _measured(self, target: AttackedNetwork, sample: Sample) -> Measures:
        """Attack one share in both ways, and score the answers."""
        share = target.share(sample)
        ways = {
            "head": Knowledge(self.kind.family, head_only=True),
            "whole": Knowledge(self.kind.family),
        }
        found = {way: recover(target.subject, [share], known)[0] for way, known in ways.items()}
        measures = {
            f"{way}_{name}": value
            for way, recovery in found.items()
            for name, value in scored(recovery, sample).items()
        }
        if self.kind != ONE_HOT:  # not `is not`: a worker process holds a copy
            return measures
        return {**measures, "idlg_exact": _idlg(target, share) == int(sample.y.argmax())}


def _idlg(target: AttackedNetwork, share: GradientShare) -> int | None:
    """Return the class as iDLG's code reads it, from the lowest row; None of a zero gradient."""
    if not share[target.head.weight_name].any():
        return None
    found = HardLabel().start(Seen(target.head, share, None))
    return None if found is None else int(found.value.argmax())


def scored(recovery: Recovery, sample: Sample) -> dict[str, float | str | bool | None]:
    """Return how an answer compares with the true label of its sample.

    The error counts for UNIQUE answers only, because the paper's mean error does so as well.
    """
    unique = recovery.status is Status.UNIQUE
    error = label_error(recovery, sample.y)
    return {
        "status": recovery.status.name,
        "exact": unique and error < LABEL_TOLERANCE,
        "L1": error if unique else None,
    }


# The accuracy for smoothed, mixed and one-hot labels, and that of iDLG for one-hot labels.
TABLE1_PAPER = {
    "resnet50 on cifar100": (0.992, 1.0, 1.0, 1.0),
    "resnet50 on flowers": (0.991, 0.976, 0.956, 0.956),
    "resnet50 on imagenet": (1.0, 1.0, 0.999, 0.999),
}


def _cells(subject: str) -> tuple[LabelCell, ...]:
    """Return the three cells of one network."""
    smoothed, mixed, one_hot, idlg = TABLE1_PAPER[subject]
    return (
        LabelCell(subject, SMOOTHED, {ACCURACY: smoothed}),
        LabelCell(subject, MIXED, {ACCURACY: mixed}),
        LabelCell(subject, ONE_HOT, {ACCURACY: one_hot, IDLG: idlg}),
    )


TABLE1 = Experiment(
    "table1",
    "Table 1: labels recovered on an untrained ResNet50",
    tuple(cell for subject in TABLE1_PAPER for cell in _cells(subject)),
    (*ACCURACIES, Column("iDLG, by us", "idlg_exact", Unit.PERCENT, IDLG)),
    samples=20,
)


# The accuracy and the mean L1 error, for smoothed labels and then for mixed ones.
TABLE2_PAPER = {
    "lenet": ((0.997, 5.32e-5), (0.997, 3.62e-5)),
    "lenet trained": ((0.999, 2.39e-4), (1.0, 1.51e-4)),
    "resnet18": ((1.0, 8.78e-5), (1.0, 7.50e-5)),
    "resnet18_cifar trained": ((0.992, 3.17e-7), (0.990, 3.94e-6)),
    "alexnet": ((0.946, 2.22e-6), (0.883, 9.64e-6)),
    "alexnet trained": ((0.987, 1.09e-4), (0.989, 6.50e-8)),
    "resnet18 on flowers": ((1.0, 6.02e-6), (1.0, 2.92e-5)),
    "resnet18 on flowers trained": ((0.991, 7.36e-5), (0.999, 2.30e-4)),
}

TABLE2 = Experiment(
    "table2",
    "Table 2: labels recovered on untrained and trained networks",
    tuple(
        LabelCell(subject, kind, {ACCURACY: accuracy, ERROR: error})
        for subject, values in TABLE2_PAPER.items()
        for kind, (accuracy, error) in zip((SMOOTHED, MIXED), values, strict=True)
    ),
    (*ACCURACIES, *ERRORS),
    samples=50,
)


RIGHT_PART, PROVED_PART, WRONG_COUNT = "right", "proved", "wrong_unique"


@dataclass(frozen=True)
class BatchCell:
    """A cell that recovers every sample of batches of one size.

    Attributes:
        subject: the name of the network in ``NETWORKS``.
        kind: how labels are made, and the family that the attacker assumes.
        size: the number of samples in a batch, which the attacker knows.
        paper: the paper's values; there are none, as the paper has no batches.
        samples: the number of batches in one repetition.
        together: the number of batches that are attacked at once.
    """

    subject: str
    kind: AugmentationKind
    size: int
    paper: Mapping[str, float] = field(default_factory=dict, hash=False)
    samples: int = 100
    together: int = 1

    @property
    def name(self) -> str:
        """The name of the cell in tables and records."""
        return f"{self.subject}, {self.kind.name}, B={self.size}"

    @property
    def network(self) -> Network:
        """The network that is attacked."""
        return NETWORKS[self.subject]

    def prepare(self, shelf: Shelf) -> Attack:
        """Return the attack on the batches of this cell."""
        target = AttackedNetwork.of(self.network, shelf, evidence=False, everything=True)

        def attack(numbers: Sequence[int], repeat: int) -> Iterator[Measures]:
            for number in numbers:
                yield self._measured(target, number, repeat)

        return attack

    def _measured(self, target: AttackedNetwork, number: int, repeat: int) -> Measures:
        """Attack one batch, and compare the answer with the truth afterwards."""
        rows = range(number * self.size, (number + 1) * self.size)
        drawn = [target.sample(self.kind.augmentation, row, repeat) for row in rows]
        x = torch.stack([one.x.reshape(self.network.input_shape) for one in drawn]).float()
        y = torch.stack([one.y.flatten() for one in drawn])
        share = capture(target.model, x, y.float())
        knowledge = Knowledge(self.kind.family, samples=self.size)
        return scored_batch(read_batch(target.subject, share, knowledge), y.double())


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
