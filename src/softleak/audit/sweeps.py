"""The defences that an audit tries, from weak to strong."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from softleak.core.share import GradientShare
from softleak.core.vocabulary import DefenceGroup
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
from softleak.present.words import written


@dataclass(frozen=True)
class Treatment:
    """Shorten an update, and leave out its smaller entries.

    Attributes:
        kept: the part of each gradient's entries that is sent, the largest ones.
        length: the length that is left of the update. The receiver then no longer knows its scale.
    """

    kept: float = 1.0
    length: float = 1.0

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

        Args:
            sent: what was sent.
            noise: the standard deviation of the noise on what was sent.
        """
        if self.clips:
            sent = replace(sent, scale="unknown")
        if not self.prunes:
            return [sent]
        errors = {n: math.hypot(noise, sent.noise(n), _missing(g)) for n, g in sent.items()}
        return [sent, replace(sent, rounding=errors)]

    @property
    def words(self) -> str:
        """Return the treatment as it continues a sentence; empty if it does nothing."""
        said = f" on the largest {self.kept:.0%} of the entries" if self.prunes else ""
        return f"{said}, clipped to {self.length:.0%} of its length" if self.clips else said


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
    """A defence as a function of one setting, and settings from weak to strong.

    ``make`` takes a setting and a seed. Without settings the defence has only one.
    """

    name: str
    unit: str
    make: Callable[[float, int], Defense]
    settings: tuple[float, ...] = ()

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


EPSILONS = (1e6, 1e4, 1e3, 1e2, 30.0, 8.0, 1.0)
PERCENTILES = (10.0, 50.0, 90.0, 99.0)
SVT_FRACTIONS = (1.0, 0.5, 0.1, 0.01)
NOISE_PARTS = (0.01, 0.1, 1.0, 10.0)
FLARE_PERCENTILE = 95.0  # of the absolute entries, in whose units the noise is given


ONE_UPDATE = PrivateTraining()


@dataclass(frozen=True)
class Asked:
    """Which defences are tried, and what they need to know.

    Attributes:
        groups: the groups of defences; None for all common ones, and DP-SGD if it is installed.
        training: how a sample is used in the training whose ε is counted.
        lr: the learning rate that turns a share into a step of weights, on which filters act.
    """

    groups: frozenset[DefenceGroup] | None = None
    training: PrivateTraining = ONE_UPDATE
    lr: float = 0.1

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
    """Return what is tried on shares of this L2 norm.

    Args:
        norm: the L2 norm.
        embeddings: the parameters that tell an input by themselves; freezing them is tried too.
        asked: which defences are tried; the common ones if it is None.
        model: the model, whose first and last layers a filter may leave out.
    """
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
    delta = written(training.delta).removeprefix("1.0·")
    unit = f"ε (δ = {delta}, sampling rate {training.rate:g}, {steps})"
    return Sweep("DP-SGD", unit, lambda s, seed: training.defense(s, norm, seed), EPSILONS)


def _flare_sweeps(lr: float, model: nn.Module | None) -> list[Sweep]:
    """Return the filters of NVIDIA FLARE, with its own defaults for what is not on the axis."""
    layers = (
        list(dict.fromkeys(n.rpartition(".")[0] for n, _ in model.named_parameters()))
        if model
        else []
    )
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
                lambda *_, names=names: FlareFilter(
                    "ExcludeVars", {"exclude_vars": f"^{re.escape(names[0])}[.]"}, lr
                ),
            )
            for which, names in ends.items() if names
        ),
        Sweep(
            f"Gaussian noise in units of the {FLARE_PERCENTILE:g}th percentile", "part",
            lambda s, seed: PercentileNoise(s, FLARE_PERCENTILE, seed), NOISE_PARTS,
        ),
    ]  # fmt: skip
