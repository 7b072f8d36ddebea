"""What cells of Tables 1 and 2 and of App. D have in common: a network and a kind of label."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from softleak.data import Sample
from softleak.experiments.experiment import Attack
from softleak.experiments.kinds import Kind
from softleak.experiments.networks import NETWORKS, Network
from softleak.experiments.target import Target
from softleak.sweep import Measures


@dataclass(frozen=True)
class KindCell:
    """A network and a kind of label; samples are attacked one by one."""

    subject: str
    kind: Kind
    paper: Mapping[str, float] = field(hash=False)
    samples: int = 1000
    together: int = 1

    @property
    def name(self) -> str:
        return f"{self.subject}, {self.kind.name}"

    @property
    def network(self) -> Network:
        return NETWORKS[self.subject]

    def one_by_one(self, target: Target, measured: Callable[[Sample], Measures]) -> Attack:
        """The attack that measures sample after sample."""

        def attack(numbers: Sequence[int], repeat: int) -> Iterator[Measures]:
            for number in numbers:
                yield measured(target.sample(self.kind.augmentation, number, repeat))

        return attack
