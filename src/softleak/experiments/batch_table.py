"""This module holds a table of its own: the labels of every sample of a batch, from one share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import torch
from torch import Tensor

from softleak.batches.recover_batch import read_batch
from softleak.client import capture
from softleak.experiments.attacked_network import AttackedNetwork
from softleak.experiments.experiment import Attack, Column, Experiment, Unit
from softleak.experiments.kinds import MIXED, ONE_HOT, SMOOTHED, AugmentationKind
from softleak.experiments.label_cells import LABEL_TOLERANCE
from softleak.experiments.networks import NETWORKS, Network
from softleak.experiments.shelf import Shelf
from softleak.knowledge import Knowledge
from softleak.results import BatchRecovery
from softleak.sweep import Measures

RIGHT_PART, PROVED_PART, WRONG_COUNT = "right", "proved", "wrong_unique"


@dataclass(frozen=True)
class BatchCell:
    """This is a cell that recovers every sample of batches of one size.

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
