"""This module holds the leaderboard of the field: attacks × networks × defences × batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import torch
from torch import Tensor

from softleak.auditing.audit_options import Options
from softleak.auditing.audit_run import audit
from softleak.client import capture
from softleak.data import CIFAR10_NORM, Sample
from softleak.defenses import Defense, GaussianNoise, Prune
from softleak.experiments.attacked_network import AttackedNetwork
from softleak.experiments.breaching_attack import BreachingAttack
from softleak.experiments.experiment import Attack, Column, Experiment, Unit
from softleak.experiments.field_attacks import DLG, IDLG_ATTACK, INVERTING_GRADIENTS, FieldAnswer
from softleak.experiments.frameworks import BREACHING
from softleak.experiments.inversion import mean_image
from softleak.experiments.kinds import SMOOTHED
from softleak.experiments.label_cells import LABEL_TOLERANCE
from softleak.experiments.networks import NETWORKS, Network
from softleak.experiments.seeds import SEEDS
from softleak.experiments.shelf import Shelf
from softleak.knowledge import Knowledge
from softleak.metrics import psnr
from softleak.share import GradientShare
from softleak.subject import Subject
from softleak.sweep import Measures

OURS_SECONDS = 30.0  # how long an audit matches gradients where nothing is computed exactly
IMAGE, CLASS_RIGHT, LABEL_RIGHT = "PSNR", "class", "label"


def ours(subject: Subject, share: GradientShare, size: int) -> FieldAnswer:
    """Return what an audit finds that is told the number of samples and nothing else."""
    options = Options(
        Knowledge(samples=size if size > 1 else None),
        seconds=OURS_SECONDS, views=False, normalisation=CIFAR10_NORM,
    )  # fmt: skip
    report = audit(subject.model, share, options=options)
    recoveries = report.samples.samples or (report.label.recovery,)
    labels = [one.label for one in recoveries if one.label is not None]
    alone = () if report.input.pixels is None else (report.input.pixels,)
    pictures = [CIFAR10_NORM.apply(one.float()) for one in report.samples.pictures or alone]
    none = torch.zeros(0, subject.head.classes)
    return FieldAnswer(
        torch.stack(pictures) if pictures else None, torch.stack(labels) if labels else none
    )


LeaderboardAttack = Callable[[Subject, GradientShare, int], FieldAnswer]
ATTACKS: Mapping[str, LeaderboardAttack] = {
    "softleak": ours,
    "DLG": DLG,
    "iDLG": IDLG_ATTACK,
    "inverting gradients": INVERTING_GRADIENTS,
    BREACHING: BreachingAttack(normalisation=CIFAR10_NORM),
}
DEFENCES: Mapping[str, Callable[[int], Defense | None]] = {
    "no defence": lambda _: None,
    "noise 1e-3": lambda seed: GaussianNoise(1e-3, seed),
    "pruned to 10 %": lambda _: Prune(0.1),
}


@dataclass(frozen=True)
class LeaderboardCell:
    """This is one attack on the batches of one network, behind one defence.

    Attributes:
        subject: the name of the network in ``NETWORKS``.
        defence: the name of the defence in ``DEFENCES``.
        size: the number of samples in a batch, which every attack is told.
        method: the name of the attack in ``ATTACKS``.
        paper: the paper's values, of which there are none.
        samples: the number of batches in one repetition.
        together: the number of batches that are attacked at once.
    """

    subject: str
    defence: str
    size: int
    method: str
    paper: Mapping[str, float] = field(default_factory=dict, hash=False)
    samples: int = 20
    together: int = 1

    @property
    def name(self) -> str:
        """The name of the cell in tables and records."""
        return f"{self.subject}, {self.defence}, B={self.size}, {self.method}"

    @property
    def network(self) -> Network:
        """The network that is attacked."""
        return NETWORKS[self.subject]

    def prepare(self, shelf: Shelf) -> Attack:
        """Return the attack on the batches of this cell."""
        target = AttackedNetwork.of(self.network, shelf, evidence=False, everything=True)
        nothing = self.network.normalisation.apply(mean_image(target))

        def attack(numbers: Sequence[int], repeat: int) -> Iterator[Measures]:
            for number in numbers:
                rows = range(number * self.size, (number + 1) * self.size)
                drawn = [target.sample(SMOOTHED.augmentation, row, repeat) for row in rows]
                share = self._share(target, drawn, SEEDS.noise + repeat + number)
                yield self._scored(ATTACKS[self.method](target.subject, share, self.size), drawn,
                                   nothing)  # fmt: skip

        return attack

    def _share(self, target: AttackedNetwork, drawn: Sequence[Sample], seed: int) -> GradientShare:
        """Return what a client sends for these samples, defended."""
        x = torch.stack([one.x for one in drawn]).float()
        share = capture(target.model, x, torch.stack([one.y for one in drawn]).float())
        defence = DEFENCES[self.defence](seed)
        return share if defence is None else defence(share)

    def _scored(self, found: FieldAnswer, drawn: Sequence[Sample], nothing: Tensor) -> Measures:
        """Compare every true sample with the image and the label that come nearest to it."""
        norm = self.network.normalisation
        usable = found.inputs is not None and bool(found.inputs.isfinite().all())
        images = found.inputs if usable and found.inputs is not None else nothing[None]
        pixels = [norm.invert(image.view_as(nothing).double()) for image in images]
        best = [max(psnr(one, norm.invert(s.x.double())) for one in pixels) for s in drawn]
        y = torch.stack([one.y.flatten() for one in drawn]).double()
        off = torch.cdist(y, found.labels.double(), p=1)
        same = y.argmax(1)[:, None] == found.labels.argmax(1)
        exact = (off < LABEL_TOLERANCE).any(1)
        return {
            IMAGE: sum(best) / len(best),
            CLASS_RIGHT: float(same.any(1).double().mean()),
            LABEL_RIGHT: float(exact.double().mean()),
        }


LEADERBOARD = Experiment(
    "leaderboard",
    "Leaderboard of the field: attacks by network, defence and batch size (not in the paper)",
    tuple(
        LeaderboardCell(*cell)
        for cell in product(("mlp ReLU", "lenet", "lenet trained"), DEFENCES, (1, 2), ATTACKS)
    ),
    (
        Column("PSNR", IMAGE, Unit.DECIBEL),
        Column("class right", CLASS_RIGHT, Unit.PERCENT),
        Column("label within 0.001", LABEL_RIGHT, Unit.PERCENT),
    ),
    samples=2,
    across={method: f", {method}" for method in ATTACKS},
)
