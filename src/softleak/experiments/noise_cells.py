"""Cells of Table 5: what noise costs a label, on everything that is sent and on one row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from softleak.data import Sample, numbered_generator
from softleak.defenses import Defense
from softleak.experiments.attacked_network import AttackedNetwork
from softleak.experiments.experiment import Attack
from softleak.experiments.kinds import SMOOTHED
from softleak.experiments.networks import NETWORKS, Network
from softleak.experiments.noise_answers import Answer, chosen_row, pso, read, scored
from softleak.experiments.seeds import SEEDS
from softleak.experiments.shelf import Shelf
from softleak.knowledge import Knowledge
from softleak.labels.recover import recover
from softleak.share import GradientShare
from softleak.sweep import Measures

__all__ = ["Noise", "NoiseCell", "OneRow", "chosen_row", "read"]

Noise = Callable[[float, torch.Generator], Defense]  # a standard deviation and a source of noise


@dataclass(frozen=True)
class OneRow:
    """The paper's protocol, a defence that adds noise to one row of the head's gradient only.

    Attributes:
        noise: the defence whose noise is kept on the chosen row.
        weight: the name of the head's weight.
        row: the number of the chosen row.
    """

    noise: Defense
    weight: str
    row: int

    def __call__(self, share: GradientShare) -> GradientShare:
        """Return the share with noise on the chosen row."""
        noisy = self.noise(share)[self.weight]

        def change(name: str, g: Tensor) -> Tensor:
            if name != self.weight:
                return g
            chosen = torch.arange(len(g)) == self.row
            return torch.where(chosen[:, None], noisy, g)

        return share.map(change)


@dataclass(frozen=True)
class NoiseCell:
    """A cell that recovers smoothed labels under one kind and size of noise.

    Attributes:
        kind: the name of the noise.
        noise: the function that makes the defence.
        std: the standard deviation of the noise.
        paper: the paper's values, by the name that a column refers to.
        samples: the number of samples that the paper has.
        together: the number of samples in one batch.
        subject: the name of the network in ``NETWORKS``.
    """

    kind: str
    noise: Noise
    std: float
    paper: Mapping[str, float] = field(hash=False)
    samples: int = 100
    together: int = 1
    subject: str = "resnet18 kaiming"

    @property
    def name(self) -> str:
        """The name of the cell in tables and records."""
        return f"{self.kind}, {self.std:.0e}"

    @property
    def network(self) -> Network:
        """The network that is attacked."""
        return NETWORKS[self.subject]

    def prepare(self, shelf: Shelf) -> Attack:
        """Return the attack on labels behind this cell's noise."""
        target = AttackedNetwork.of(self.network, shelf)

        def attack(numbers: Sequence[int], repeat: int) -> Iterator[Measures]:
            for number in numbers:
                sample = target.sample(SMOOTHED.augmentation, number, repeat)
                noise = self.noise(self.std, numbered_generator(SEEDS.noise + repeat, number))
                yield self._measured(target, sample, noise)

        return attack

    def _measured(self, target: AttackedNetwork, sample: Sample, noise: Defense) -> Measures:
        """Attack one share in five ways, and score the answers."""
        share = target.share(sample)
        row = chosen_row(share, target.head)
        everything = noise(share)
        one_row = OneRow(noise, target.head.weight_name, row)(share)
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
        return {
            f"{way}_{name}": value
            for way, answer in answers.items()
            for name, value in scored(answer, scalar_true, sample.y).items()
        }


def _ours(target: AttackedNetwork, share: GradientShare, *, head_only: bool) -> Answer:
    """Return softleak's answer, from the head's gradient alone or from the whole share."""
    known = Knowledge(SMOOTHED.family, head_only=head_only)
    (found,) = recover(target.subject, [share], known)
    return read(found, target.head, chosen_row(share, target.head))
