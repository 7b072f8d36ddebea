"""The leaderboard of the field: attacks × networks × defences × batch sizes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache
from importlib import import_module
from io import StringIO
from itertools import product
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.library import define

from softleak.audit.metrics import psnr
from softleak.audit.options import Options
from softleak.audit.run import audit
from softleak.core.errors import MissingExtra, how_to_install, in_a_line
from softleak.core.factors import head_gradients
from softleak.core.input_spec import CIFAR10_NORM, Normalisation
from softleak.core.knowledge import Knowledge
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.defenses.defense import Defense, GaussianNoise, Prune
from softleak.matching.problems import DifferentiableModel, TotalVariation
from softleak.paper.experiment import Cell, Column, Experiment, Unit
from softleak.paper.networks import NOISE_SEED, SMOOTHED, AttackedNetwork
from softleak.paper.sweep import Measures
from softleak.paper.tables import LABEL_TOLERANCE

BREACHING = "breaching (inverting gradients)"
BOX_OPERATORS = ("nms", "qnms")


def breaching() -> ModuleType:
    """Return the framework; raises ``MissingExtra`` if it does not import."""
    try:
        try:
            import_module("breaching.attacks")
        except RuntimeError:  # torchvision's operators were not declared, or something else
            _declare_operators()
            import_module("breaching.attacks")
    except ImportError as error:
        raise MissingExtra(
            f"breaching is not installed ({in_a_line(error)}): {how_to_install('breaching')}"
        ) from error
    except RuntimeError as error:
        raise MissingExtra(f"breaching does not import: {in_a_line(error)}") from error
    return import_module("breaching")


@cache
def _declare_operators() -> None:
    """Declare torchvision's operators on boxes to torch, once in a process."""
    for name in BOX_OPERATORS:
        define(
            f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )


def runnable(experiment: Experiment, only: str = "") -> Experiment:
    """Return an experiment, without breaching's cells if that does not import but others do."""
    others = tuple(cell for cell in experiment.cells if BREACHING not in cell.name)
    if not any(only in cell.name for cell in experiment.cells if BREACHING in cell.name):
        return experiment
    try:
        breaching()
    except MissingExtra:
        if not any(only in cell.name for cell in others):
            raise
        return replace(experiment, cells=others)
    return experiment


def frameworks_left_out() -> str:
    """Say of each framework of attacks that was not run why not."""
    leakpro = (
        "LeakPro was not run: the package leakpro 0.0.1 is empty, and softleak has no adapter to "
        "LeakPro's repository."
    )
    try:
        breaching()
    except MissingExtra as error:
        return f"One attack was not run: {error}. {leakpro}"
    return leakpro


# The inputs (n, …) that an attack found, None if there are none, and its labels (m, C).
FieldAnswer = tuple[Tensor | None, Tensor]


def apparent_labels(subject: Subject, share: GradientShare, size: int) -> Tensor:
    """Return one-hot labels (B, C) of the classes whose rows of the head's gradient sum lowest."""
    lowest = head_gradients(subject.head, [share])[0].sum(1).argsort()[:size]
    return F.one_hot(lowest, subject.head.classes).float()


@dataclass(frozen=True)
class FieldAttack:
    """A published attack that matches gradients, for any number of samples."""

    cosine: bool  # whether the distance is the cosine; otherwise it is the squared difference
    free_labels: bool  # whether labels are sought with the inputs; else they are the apparent ones
    variation: float = 0.0  # the weight of total variation
    evaluations: int = 300  # the number of gradients that may be computed
    rate: float = 1.0  # the learning rate
    seed: int = 0  # the seed of the first guess

    def __call__(self, subject: Subject, share: GradientShare, size: int) -> FieldAnswer:
        """Return the inputs and labels that the attack finds for a share of ``size`` samples."""
        generator = torch.Generator().manual_seed(self.seed)
        x = torch.randn(size, *subject.expected_tensor_shape, generator=generator)
        logits = torch.randn(size, subject.head.classes, generator=generator)
        hard = apparent_labels(subject, share, size)
        sought = [x.requires_grad_(), *([logits.requires_grad_()] if self.free_labels else [])]
        distance = self._distance(subject, share)

        def labels() -> Tensor:
            return logits.softmax(-1) if self.free_labels else hard

        def evaluate() -> Tensor:
            """Return the distance, and leave its slope, or the sign of it, in what is sought."""
            found = distance(x, labels())
            for one, slope in zip(sought, torch.autograd.grad(found, sought), strict=True):
                one.grad = slope.sign() if self.cosine else slope
            return found.detach()

        with torch.enable_grad():  # as the attack's authors do
            if self.cosine:
                adam = torch.optim.Adam(sought, lr=self.rate)
                for _ in range(self.evaluations):
                    adam.step(evaluate)
            else:
                most = self.evaluations
                lbfgs = torch.optim.LBFGS(sought, lr=self.rate, max_iter=most, max_eval=most)
                lbfgs.step(evaluate)  # type: ignore[no-untyped-call]
        return x.detach(), labels().detach()

    def _distance(
        self, subject: Subject, share: GradientShare
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """Return how far the gradient of inputs (B, …) with labels (B, C) is from the share."""
        model = DifferentiableModel.of(subject.model, subject.head, torch.float32)
        names = [name for name in model.parameters if name in share]
        sent = torch.cat([share[name].float().flatten() for name in names])
        penalty = TotalVariation(self.variation)

        def distance(x: Tensor, y: Tensor) -> Tensor:
            gradient = model.gradient(x, y)
            found = torch.cat([gradient[name].flatten() for name in names])
            if not self.cosine:
                return (found - sent).square().sum()
            return 1 - F.cosine_similarity(found, sent, dim=0) + penalty(x)

        return distance


DLG = FieldAttack(cosine=False, free_labels=True)
IDLG_ATTACK = FieldAttack(cosine=False, free_labels=False)
INVERTING_GRADIENTS = FieldAttack(cosine=True, free_labels=False, variation=1e-2, rate=0.1)


@dataclass(frozen=True)
class BreachingAttack:
    """The attack ``invertinggradients`` of breaching, by its own settings except for the steps."""

    normalisation: Normalisation  # of inputs, by which breaching keeps pixels in [0, 1]
    evaluations: int = 300  # the number of gradients that may be computed. Its authors take 24,000
    seed: int = 0  # the seed of the first guess

    def __call__(self, subject: Subject, share: GradientShare, size: int) -> FieldAnswer:
        """Return the inputs that breaching finds for a share of every parameter.

        breaching recovers labels only from a head with a bias, so it is told the classes that the
        other attacks read off the share.
        """
        labels = apparent_labels(subject, share, size)
        framework, steps = breaching(), f"optim.max_iterations={self.evaluations}"
        with (
            torch.random.fork_rng(devices=()), torch.enable_grad(), redirect_stdout(StringIO()),
            warnings.catch_warnings(),
        ):  # fmt: skip
            warnings.simplefilter("ignore")
            torch.manual_seed(self.seed)
            settings = framework.get_attack_config("invertinggradients", overrides=[steps])
            attacker = framework.attacks.prepare_attack(
                subject.model, nn.CrossEntropyLoss(), settings
            )
            sent, received = self._exchanged(subject, share, labels)
            found, _ = attacker.reconstruct([sent], [received], {})
        return found["data"].detach(), labels

    def _exchanged(
        self, subject: Subject, share: GradientShare, labels: Tensor
    ) -> tuple[dict[str, object], dict[str, object]]:
        """Return what the server sends and receives, in breaching's form."""
        model = subject.model
        inputs = SimpleNamespace(
            shape=subject.expected_tensor_shape, modality="vision",
            mean=self.normalisation.mean, std=self.normalisation.std,
        )  # fmt: skip
        told = {
            "num_data_points": len(labels), "labels": labels.argmax(1), "local_hyperparams": None,
        }  # fmt: skip
        gradients = [share[name].float() for name, _ in model.named_parameters()]
        weights, buffers = [*model.parameters()], [*model.buffers()]
        sent = {"parameters": weights, "buffers": buffers, "metadata": inputs}
        return sent, {"gradients": gradients, "buffers": None, "metadata": told}


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
    return torch.stack(pictures) if pictures else None, torch.stack(labels) if labels else none


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
class LeaderboardCell(Cell):
    """One attack on the batches of one network, behind one defence; the paper has none."""

    everything: ClassVar[bool] = True
    evidence: ClassVar[bool] = False

    defence: str  # the name of the defence in ``DEFENCES``
    size: int  # the number of samples in a batch, which every attack is told
    method: str  # the name of the attack in ``ATTACKS``
    _: KW_ONLY
    samples: int = 20  # the number of batches in one repetition

    @property
    def name(self) -> str:
        return f"{self.subject}, {self.defence}, B={self.size}, {self.method}"

    def measured(self, target: AttackedNetwork, number: int, repeat: int) -> Measures:
        """Compare every true sample with the image and the label that come nearest to it."""
        drawn, share = target.batch(SMOOTHED.augmentation, self.size, number, repeat)
        defence = DEFENCES[self.defence](NOISE_SEED + repeat + number)
        sent = share if defence is None else defence(share)
        images, labels = ATTACKS[self.method](target.subject, sent, self.size)
        norm = self.network.normalisation
        if images is None or not bool(images.isfinite().all()):
            images = norm.apply(target.mean_image)[None]
        pixels = [norm.invert(image.view(drawn[0].x.shape).double()) for image in images]
        best = [max(psnr(one, norm.invert(s.x.double())) for one in pixels) for s in drawn]
        y = torch.stack([one.y for one in drawn])
        off = torch.cdist(y, labels.double(), p=1)
        same = y.argmax(1)[:, None] == labels.argmax(1)
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
