"""How often attacks succeed: rates with intervals, by setting of a defence."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor

from softleak.audit.leaks import Leak
from softleak.core.forward import forward_one
from softleak.core.share import GradientShare
from softleak.core.subject import Subject

# What chooses the step on which losses are compared.
LINE_HALVINGS = 30  # the most often that the step is halved
LINE_SUFFICIENT = 0.5  # the part of the predicted fall in loss that a step must reach


@dataclass(frozen=True)
class Utility:
    """What is left of an update behind a defence.

    Attributes:
        cosine: the cosine between what is sent and the true update; what is withheld counts as 0.
        length: the length of what is sent, in units of the true update.
        loss: the fall in the sample's own loss after a step of what is sent, as a part of that
            after the same step of the true update. It is negative if the loss rises, and None if
            the sample is not known.
    """

    cosine: float
    length: float
    loss: float | None = None

    @property
    def progress(self) -> float:
        """Return the first-order fall in loss after a step no longer than the true update.

        It is a part of the fall after the true update itself: ``cosine · min(1, length)``.
        """
        return self.cosine * min(1.0, self.length)

    @property
    def words(self) -> str:
        """Return the utility as a table shows it."""
        said = f"cosine {self.cosine:.2f}"
        return said if self.loss is None else f"{said}, {self.loss:.0%} of the fall in loss"


def utility(true: GradientShare, sent: GradientShare, falls: LossFall | None = None) -> Utility:
    """Return what is left of a true update in what is sent instead.

    Args:
        true: the update before the defence.
        sent: the update behind it; it may lack gradients.
        falls: how a step changes the loss of the sample, if the sample is known.
    """
    both = sum(float((g.double() * sent[n].double()).sum()) for n, g in true.items() if n in sent)
    whole, left = true.norm(), sent.norm()
    cosine = both / (whole * left) if whole * left > 0 else 0.0
    loss = None if falls is None else falls.part(sent)
    return Utility(cosine, left / whole if whole > 0 else 0.0, loss)


def mean_utility(found: Sequence[Utility]) -> Utility:
    """Return the mean of some utilities; the loss is that of the samples which are known."""
    losses = [one.loss for one in found if one.loss is not None]
    return Utility(
        fmean(one.cosine for one in found), fmean(one.length for one in found),
        fmean(losses) if losses else None,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class LossFall:
    """Compare steps by the loss of the sample that an update was computed from.

    The step has the learning rate at which the true update lowers the loss by at least half of what
    its slope predicts, found by halving from 1.

    Attributes:
        loss: the loss after a step of a share at a learning rate; 0 is no step.
        rate: the learning rate.
        before: the loss before the step.
        fall: the fall in loss after a step of the true update.
    """

    loss: Callable[[GradientShare, float], float]
    rate: float
    before: float
    fall: float

    @classmethod
    def of(cls, subject: Subject, true: GradientShare, x: Tensor, y: Tensor) -> LossFall | None:
        """Return the comparison for one sample; None if no step of the update lowers its loss.

        Args:
            subject: the model, with the weights before the step.
            true: the update.
            x: the input of the sample, as the model takes it.
            y: its label (C,).
        """
        loss = _loss_after(subject, x, y)
        before, slope, rate = loss(true, 0.0), true.norm() ** 2, 1.0
        for _ in range(LINE_HALVINGS):
            fall = before - loss(true, rate)
            if math.isfinite(fall) and fall >= LINE_SUFFICIENT * rate * slope > 0:
                return cls(loss, rate, before, fall)
            rate /= 2
        return None

    def part(self, sent: GradientShare) -> float:
        """Return the fall in loss after a step of what is sent, in units of the true one's."""
        return (self.before - self.loss(sent, self.rate)) / self.fall


def _loss_after(subject: Subject, x: Tensor, y: Tensor) -> Callable[[GradientShare, float], float]:
    """Return the cross-entropy of a sample as a function of a step from the subject's weights."""
    model = copy.deepcopy(subject.model)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}

    def loss(share: GradientShare, rate: float) -> float:
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(start[name] - rate * share[name].to(p) if name in share else start[name])
            logits, _ = forward_one(model, x)
            return float(F.cross_entropy(logits.double(), y.to(logits).double().unsqueeze(0)))

    return loss


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
        n, p = self.trials, self.value
        middle = (p + WILSON_Z * WILSON_Z / (2 * n)) / (1 + WILSON_Z * WILSON_Z / n)
        half = (
            WILSON_Z
            / (1 + WILSON_Z * WILSON_Z / n)
            * math.sqrt(p * (1 - p) / n + WILSON_Z * WILSON_Z / (4 * n * n))
        )
        return max(middle - half, 0.0), min(middle + half, 1.0)


@dataclass(frozen=True)
class Point:
    """The rates at one setting of a defence, and what it leaves of the update.

    What was not tried is missing. ``unclaimed`` is the number of trials in which the best label is
    right, although no attack claims it.
    """

    setting: float
    rates: Mapping[Leak, Rate]
    utility: Utility | None = None
    unclaimed: int = 0


@dataclass(frozen=True)
class Response:
    """How leakage answers to one defence.

    ``stops`` holds the weakest setting tried at which an attack succeeded in no trial, and ``left``
    what is left of the update there. ``unclaimed`` is the number of trials in which the best label
    is right although no attack claims it: the most at any setting from where claims end, or that at
    the strongest setting if they do not.
    """

    name: str
    unit: str
    points: tuple[Point, ...]
    stops: Mapping[Leak, float]
    left: Mapping[Leak, Utility] = field(default_factory=dict)
    unclaimed: int = 0


@dataclass(frozen=True)
class WhatIf:
    """Every defence that was tried on some shares with some seeds."""

    responses: tuple[Response, ...]
    shares: int
    seeds: int
