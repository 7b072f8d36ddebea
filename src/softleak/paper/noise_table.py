"""Table 5: labels of an untrained ResNet18 under noise.

What the paper calls the variance of the noise is its standard deviation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from softleak.core.head import Head
from softleak.core.knowledge import Knowledge
from softleak.core.results import Recovery
from softleak.core.share import GradientShare
from softleak.defenses.defense import Defense, GaussianNoise, LaplaceNoise
from softleak.labels.recover import recover
from softleak.paper.classic.methods import RowRatios, Vectorised
from softleak.paper.classic.search import PUBLISHED_NOISE
from softleak.paper.data.samples import Sample, numbered_generator
from softleak.paper.experiment import Attack, Cell, Column, Experiment, Unit
from softleak.paper.networks import NETWORKS, SEEDS, SMOOTHED, AttackedNetwork, Network, Shelf
from softleak.paper.sweep.records import Measures

SCALAR_TOLERANCE = 1.0  # the paper counts a success if |λ_r − λ_r*| is below this


@dataclass(frozen=True, eq=False)
class Answer:
    """What an attack says of one share.

    Attributes:
        scalar: the scalar λ_r; infinite if the attack found nothing.
        label: the label (C,); None if the attack found nothing.
        status: the status of the attack in a word.
    """

    scalar: float
    label: Tensor | None
    status: str


def chosen_row(share: GradientShare, head: Head) -> int:
    """Return the paper's r, the row of the head's gradient whose sum has the largest size."""
    return int(share[head.weight_name].sum(1).abs().argmax())


def read(recovery: Recovery, head: Head, row: int) -> Answer:
    """Return what a recovery says of λ_r.

    Args:
        recovery: the recovered label and feature.
        head: the last linear layer of the model.
        row: the row r that the scalar belongs to.
    """
    if recovery.label is None or recovery.feature is None:
        return Answer(math.inf, None, recovery.status.name)
    p = torch.softmax(head.logits(recovery.feature[None])[0] + head.b, -1)
    return Answer(1 / float(p[row] - recovery.label[row]), recovery.label, recovery.status.name)


def pso(target: AttackedNetwork, share: GradientShare) -> Answer:
    """Return the answer of the paper's particle swarm with its published settings.

    It is the best scalar of all intervals, and the label there.
    """
    search = replace(PUBLISHED_NOISE, objective=Vectorised)
    best = search(target.model, share, head=target.head)
    seen = RowRatios.of(target.model, share, head=target.head)
    if best.scalar is None or seen is None:
        return Answer(math.inf, None, best.outcome.name)
    scalar = torch.tensor(best.scalar, dtype=torch.double)
    return Answer(best.scalar, Vectorised(seen, search.loss).label(scalar), best.outcome.name)


def scored(answer: Answer, scalar_true: float, y_true: Tensor) -> Measures:
    """Return how an answer compares with the truth.

    Args:
        answer: what an attack said.
        scalar_true: the true scalar λ_r*.
        y_true: the true label (C,).
    """
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


CLOSE_SHARE, SCALAR_GAP = "close", "gap"  # the names of the paper's values
# The accuracy and L_s by standard deviation, with noise on the one row that the attack reads.
PAPER: Mapping[str, tuple[Noise, Mapping[float, tuple[float, float]]]] = {
    "Gaussian": (
        GaussianNoise,
        {1e-4: (1.0, 1.02e-4), 1e-3: (1.0, 1.13e-3), 1e-2: (1.0, 1.14e-2), 1e-1: (0.45, 5.82e-1)},
    ),
    "Laplace": (
        LaplaceNoise,
        {1e-4: (1.0, 1.61e-4), 1e-3: (1.0, 8.07e-4), 1e-2: (1.0, 7.95e-3), 1e-1: (0.36, 7.95e-1)},
    ),
}
STRONGER_STD = 3e-1  # a standard deviation beyond the paper's


def _cells() -> Iterator[Cell]:
    """Yield a cell for each kind and standard deviation of the noise."""
    for kind, (noise, values) in PAPER.items():
        for std, (accuracy, gap) in values.items():
            yield NoiseCell(kind, noise, std, {CLOSE_SHARE: accuracy, SCALAR_GAP: gap})
        yield NoiseCell(kind, noise, STRONGER_STD, {})


TABLE5 = Experiment(
    "table5",
    "Table 5: labels recovered under noise",
    tuple(_cells()),
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
)
