"""The defences that an audit tries, from weak to strong, and what comes of them."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from statistics import fmean
from typing import TypeAlias

import torch
from torch import Tensor, nn

from softleak.audit.leaks import Leak
from softleak.core.forward import forward_one
from softleak.core.loss import Loss
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.core.vocabulary import DefenceGroup, written
from softleak.defenses.defense import (
    Cast,
    Clip,
    Defense,
    GaussianNoise,
    Int8,
    LaplaceNoise,
    PercentileNoise,
    Prune,
    Withhold,
    is_random,
)
from softleak.defenses.dpsgd import PrivateTraining
from softleak.defenses.flare_filters import FlareFilter


@dataclass(frozen=True)
class Treatment:
    """Shorten an update, and leave out its smaller entries."""

    kept: float = 1.0  # the part of each gradient's entries that is sent, the largest ones
    length: float = 1.0  # what is left of the update's; the receiver then does not know its scale

    @property
    def prunes(self) -> bool:
        """Whether some entries are not sent."""
        return self.kept < 1

    @property
    def clips(self) -> bool:
        """Whether the update is shortened."""
        return self.length < 1

    def __call__(self, share: GradientShare) -> GradientShare:
        """Return the share shortened and pruned."""
        clipped = Clip(self.length * share.norm())(share) if self.clips and share.norm() else share
        return Prune(self.kept)(clipped) if self.prunes else clipped

    def views(self, sent: GradientShare, noise: float) -> list[GradientShare]:
        """Return what was sent as its receivers may read it, each of whom is an attacker.

        One takes it as it is. If it was pruned, another knows that what is missing is smaller than
        what is there, and trusts each gradient accordingly.
        """
        if self.clips:
            sent = replace(sent, scale="unknown")
        if not self.prunes:
            return [sent]
        errors = {n: math.hypot(noise, sent.noise(n), _missing(g)) for n, g in sent.items()}
        return [sent, replace(sent, rounding=errors)]


PLAIN = Treatment()
# What a guard tries, each with noise. A new treatment is a line here.
TREATMENTS = (
    PLAIN,
    Treatment(kept=0.3),
    Treatment(kept=0.1),
    Treatment(kept=0.01),
    Treatment(length=0.5),
)


def _missing(g: Tensor) -> float:
    """Return the root mean square over all entries of those that are missing, at most."""
    kept = g[g != 0].abs()
    if not kept.numel():
        return 0.0
    return float(kept.min()) * math.sqrt((1 - kept.numel() / g.numel()) / 3)


@dataclass(frozen=True)
class Sweep:
    """A defence as a function of one setting and a seed, and settings from weak to strong."""

    name: str
    unit: str
    make: Callable[[float, int], Defense]
    settings: tuple[float, ...] = ()
    terms: str = ""  # under which the unit is meant

    @property
    def every(self) -> tuple[float, ...]:
        """Return the settings to try."""
        return self.settings or (1.0,)

    @property
    def random(self) -> bool:
        """Return whether seeds make a difference."""
        return is_random(self.make(self.every[0], 0))


STD = "standard deviation"
NOISE_LEVELS = tuple(10.0**power for power in range(-5, 1))
PARTS_KEPT = (1.0, 0.99, 0.9, 0.5, 0.2, 0.05, 0.01)
PARTS_OF_NORM = (2.0, 0.3, 1e-1, 1e-2, 1e-3, 1e-4)

# What is tried on shares of a given L2 norm. A new defence is a line here.
SWEEPS: list[Callable[[float], Sweep]] = [
    lambda _: Sweep("Gaussian noise", STD, lambda s, seed: GaussianNoise(s, seed), NOISE_LEVELS),
    lambda _: Sweep("Laplace noise", STD, lambda s, seed: LaplaceNoise(s, seed), NOISE_LEVELS),
    lambda norm: Sweep(
        "Clipping", "largest norm", lambda s, _: Clip(s), tuple(norm * p for p in PARTS_OF_NORM)
    ),
    lambda _: Sweep("Pruning", "part kept", lambda s, _: Prune(s), PARTS_KEPT),
    lambda _: Sweep("float16", "", lambda *_: Cast(torch.float16)),
    lambda _: Sweep("bfloat16", "", lambda *_: Cast(torch.bfloat16)),
    lambda _: Sweep("int8", "", lambda *_: Int8()),
]


# What is tried of DP-SGD, and of the filters of NVIDIA FLARE.
EPSILONS = (1e6, 1e4, 1e3, 1e2, 30.0, 8.0, 1.0)
PERCENTILES = (10.0, 50.0, 90.0, 99.0)
SVT_FRACTIONS = (1.0, 0.5, 0.1, 0.01)
NOISE_PARTS = (0.01, 0.1, 1.0, 10.0)
FLARE_PERCENTILE = 95.0  # of the absolute entries, in whose units the noise is given
ONE_UPDATE = PrivateTraining()


@dataclass(frozen=True)
class Asked:
    """Which defences are tried, and what they need to know."""

    groups: frozenset[DefenceGroup] | None = None  # None: common ones, and DP-SGD if installed
    training: PrivateTraining = ONE_UPDATE  # how a sample is used where ε is counted
    lr: float = 0.1  # turns a share into a step of weights, on which filters act

    @property
    def chosen(self) -> frozenset[DefenceGroup]:
        """Return the groups to try."""
        if self.groups is not None:
            return self.groups
        private = {DefenceGroup.DP_SGD} if find_spec("opacus") else set()
        return frozenset({DefenceGroup.COMMON, *private})


def sweeps(
    norm: float, embeddings: tuple[str, ...] = (), asked: Asked | None = None,
    model: nn.Module | None = None,
) -> tuple[Sweep, ...]:  # fmt: skip
    """Return what is tried on shares of this L2 norm; the common defences if nothing is asked."""
    asked = asked or Asked(frozenset({DefenceGroup.COMMON}))
    found: list[Sweep] = []
    if DefenceGroup.COMMON in asked.chosen:
        found += [make(norm) for make in SWEEPS]
        frozen = Sweep("Freezing the embeddings", "", lambda *_: Withhold(embeddings))
        found += [frozen] if embeddings else []
    if DefenceGroup.DP_SGD in asked.chosen:
        found.append(_private(asked.training, norm))
    if DefenceGroup.NVFLARE in asked.chosen:
        found += _flare_sweeps(asked.lr, model)
    return tuple(found)


def _private(training: PrivateTraining, norm: float) -> Sweep:
    """Return DP-SGD with ε on the axis."""
    steps = "this update alone" if training.steps == 1 else f"{training.steps} steps"
    delta = written(training.delta, bare=True)
    terms = f"δ = {delta}, sampling rate {training.rate:g}, {steps}"
    return Sweep("DP-SGD", "ε", lambda s, seed: training.defense(s, norm, seed), EPSILONS, terms)


def _flare_sweeps(lr: float, model: nn.Module | None) -> list[Sweep]:
    """Return the filters of NVIDIA FLARE, with its own defaults for what is not on the axis."""
    names = [] if model is None else [name for name, _ in model.named_parameters()]
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    ends = {"first": layers[:1], "last": layers[-1:]}
    return [
        Sweep(
            f"NVFlare PercentilePrivacy, learning rate {lr:g}", "percentile",
            lambda s, _: FlareFilter("PercentilePrivacy", {"percentile": s}, lr), PERCENTILES,
        ),
        Sweep(
            f"NVFlare SVTPrivacy, learning rate {lr:g}", "fraction",
            lambda s, seed: FlareFilter("SVTPrivacy", {"fraction": s}, lr, seed, True),
            SVT_FRACTIONS,
        ),
        *(
            Sweep(
                f"NVFlare ExcludeVars, {which} layer", "",
                lambda *_, layer=some[0]: FlareFilter(
                    "ExcludeVars", {"exclude_vars": f"^{re.escape(layer)}[.]"}, lr
                ),
            )
            for which, some in ends.items() if some
        ),
        Sweep(
            f"Gaussian noise in units of the {FLARE_PERCENTILE:g}th percentile", "part",
            lambda s, seed: PercentileNoise(s, FLARE_PERCENTILE, seed), NOISE_PARTS,
        ),
    ]  # fmt: skip


# What chooses the step on which losses are compared.
LINE_HALVINGS = 30  # the most often that the step is halved
LINE_SUFFICIENT = 0.5  # the part of the predicted fall in loss that a step must reach


Fall: TypeAlias = Callable[[GradientShare], float]  # what a share does to a sample's loss


@dataclass(frozen=True)
class Utility:
    """What is left of an update behind a defence."""

    cosine: float  # between what is sent and the true update; what is withheld counts as 0
    length: float  # of what is sent, in units of the true update's
    # The fall in the sample's own loss after a step of what is sent, as a part of that after the
    # same step of the true update: negative if the loss rises, None if the sample is not known.
    loss: float | None = None

    @property
    def progress(self) -> float:
        """Return the first-order fall in loss after a step, as a part of the true update's."""
        return self.cosine * min(1.0, self.length)


def utility(true: GradientShare, sent: GradientShare, fall: Fall | None = None) -> Utility:
    """Return what is left of a true update in what is sent instead, which may lack gradients."""
    both = sum(float((g.double() * sent[n].double()).sum()) for n, g in true.items() if n in sent)
    whole, left = true.norm(), sent.norm()
    cosine = both / (whole * left) if whole * left > 0 else 0.0
    loss = None if fall is None else fall(sent)
    return Utility(cosine, left / whole if whole > 0 else 0.0, loss)


def mean_utility(found: Sequence[Utility]) -> Utility:
    """Return the mean of some utilities; the loss is that of the samples which are known."""
    losses = [one.loss for one in found if one.loss is not None]
    return Utility(
        fmean(one.cosine for one in found), fmean(one.length for one in found),
        fmean(losses) if losses else None,
    )  # fmt: skip


def loss_fall(
    subject: Subject, true: GradientShare, x: Tensor, y: Tensor, kind: Loss
) -> Fall | None:
    """Return how far a step of a share lowers the loss of one sample, as a part of the true one's.

    The learning rate is halved from 1 until the true update lowers the loss by half of its slope.
    None if no step of it does.
    """
    model = copy.deepcopy(subject.model)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}

    def loss(share: GradientShare, rate: float) -> float:
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(start[name] - rate * share[name].to(p) if name in share else start[name])
            logits, _ = forward_one(model, x)
            return float(kind(logits.double(), y.to(logits).double().unsqueeze(0)))

    before, slope, rate = loss(true, 0.0), true.norm() ** 2, 1.0
    for _ in range(LINE_HALVINGS):
        fall = before - loss(true, rate)
        if math.isfinite(fall) and fall >= LINE_SUFFICIENT * rate * slope > 0:
            return lambda sent: (before - loss(sent, rate)) / fall
        rate /= 2
    return None


WILSON_Z = 1.96  # of a 95 % interval


@dataclass(frozen=True)
class Rate:
    """How often an attack succeeded."""

    hits: int
    trials: int

    @property
    def value(self) -> float:
        """Return the part of the trials that succeeded."""
        return self.hits / self.trials

    @property
    def interval(self) -> tuple[float, float]:
        """Return Wilson's interval of 95 %."""
        n, p, z = self.trials, self.value, WILSON_Z
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return max(middle - half, 0.0), min(middle + half, 1.0)


@dataclass(frozen=True)
class Point:
    """The rates at one setting of a defence, of what was tried, and what the update keeps."""

    setting: float
    rates: Mapping[Leak, Rate]
    utility: Utility | None = None
    unclaimed: int = 0


@dataclass(frozen=True)
class Response:
    """How leakage answers to one defence.

    ``stops`` holds the weakest setting at which an attack succeeded in no trial, ``left`` what is
    left of the update there, and ``unclaimed`` how often the best label is right beyond it, not
    claimed.
    """

    name: str
    unit: str
    points: tuple[Point, ...]
    stops: Mapping[Leak, float]
    left: Mapping[Leak, Utility] = field(default_factory=dict)
    unclaimed: int = 0
    terms: str = ""  # under which the unit is meant

    @property
    def setting(self) -> str:
        """Return what the settings are, with the terms under which they are meant."""
        return f"{self.unit} ({self.terms})" if self.terms else self.unit


@dataclass(frozen=True)
class WhatIf:
    """Every defence that was tried on some shares with some seeds."""

    responses: tuple[Response, ...]
    shares: int
    seeds: int
