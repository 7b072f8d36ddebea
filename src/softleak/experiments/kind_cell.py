"""This module holds what the cells of Tables 1 and 2 and of App. D have in common: a network and a
kind of label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from softleak.data import Sample
from softleak.experiments.attacked_network import AttackedNetwork
from softleak.experiments.experiment import Attack
from softleak.experiments.kinds import AugmentationKind
from softleak.experiments.networks import NETWORKS, Network
from softleak.sweep import Measures


@dataclass(frozen=True)
class KindCell:
    """This is a cell that attacks one network with one kind of label, sample by sample.

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
