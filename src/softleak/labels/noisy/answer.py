"""From a posterior to a recovery: the most probable class, its label, and how sure both are."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.labels.noisy.posterior import Points, Posterior
from softleak.labels.noisy.spectrum import Spectrum
from softleak.results import Recovery, Status

SURE = 0.9  # a class less probable than this is a guess
HELD = 0.9  # the probability with which an interval holds what it is of
ROUNDED = 1e-9  # what adding up weights leaves of a sum of one
LIGHT = 1e-9  # of the heaviest: draws that change nothing
UNFIT = 1e-6  # a family this unlikely to be so far off does not fit


@dataclass(frozen=True, eq=False)
class Draws:
    """Weighted labels (R, C), their scalars τ and sizes |t|; ``weight`` (R,) adds up to one."""

    labels: Tensor
    tau: Tensor
    size: Tensor
    weight: Tensor

    @classmethod
    def of(cls, posterior: Posterior, points: Points, tau: Tensor, width: Tensor) -> Draws:
        """Every label of a quadrature that weighs anything."""
        log = points.log + width.log()[:, None, None]
        weight = (log - log.max()).exp()
        s, p, k = (weight > LIGHT).nonzero(as_tuple=True)
        patches = posterior.patches
        mixed = (points.weights[s, p, k][:, None] @ patches.directions.to(tau)[p])[:, 0]
        kept = weight[s, p, k]
        labels = (patches.origin.to(tau)[p] + mixed).clamp_min(0.0)
        return cls(labels, tau[s], points.size[s, p, k], kept / kept.sum())

    def of_class(self, index: int) -> Draws:
        """Those in which this class leads."""
        mine = self.labels.argmax(-1) == index
        weight = self.weight[mine]
        return Draws(self.labels[mine], self.tau[mine], self.size[mine], weight / weight.sum())

    def classes(self) -> Tensor:
        """(C,) the probability of each class to lead."""
        zero = self.labels.new_zeros(self.labels.shape[1])
        return zero.index_add(0, self.labels.argmax(-1), self.weight)

    def quantile(self, values: Tensor, level: float) -> Tensor:
        """A quantile of values (R, n) or (R,), weighted."""
        order = values.argsort(0)
        reached = self.weight[order].cumsum(0)
        first = (reached < level).sum(0, keepdim=True).clamp_max(len(values) - 1)
        return values.gather(0, order.gather(0, first))[0]

    def interval(self, mass: float) -> Tensor:
        """(2, C) the shortest interval that holds each entry with this probability.

        Where an entry's density is highest at zero or one, as that of a one-hot label is, the
        interval reaches that end: labels do lie on the edges of the simplex.
        """
        values, order = self.labels.sort(0)
        reached = self.weight[order].cumsum(0)
        before = reached - self.weight[order]
        last = torch.searchsorted(
            reached.T.contiguous(), (before + mass * (1 - ROUNDED)).T.contiguous()
        ).T.clamp_max(len(values) - 1)
        width = values.gather(0, last) - values
        whole = before + mass <= 1 + ROUNDED
        start = width.masked_fill(~whole, torch.inf).argmin(0, keepdim=True)
        low, high = (values.gather(0, at)[0] for at in (start, last.gather(0, start)))
        reach = (high - low).clamp_min(ROUNDED)
        return torch.stack([
            torch.where(low <= reach, 0.0, low), torch.where(1 - high <= reach, 1.0, high)
        ])  # fmt: skip


def answer(posterior: Posterior, draws: Draws, spectrum: Spectrum) -> Recovery:
    """The recovery that the draws of a posterior amount to."""
    signal = posterior.signal
    probable = draws.classes()
    index = int(probable.argmax())
    confidence = min(float(probable[index]), 1.0)
    mine = draws.of_class(index)
    label = mine.weight @ mine.labels
    label = label / label.sum()
    tau = float(mine.quantile(mine.tau, 0.5))
    size = float(mine.quantile(mine.size, 0.5))
    far = (draws.labels - label).abs().sum(-1)
    interval = draws.interval(HELD)
    error = max(float(draws.quantile(far, HELD)), _to_the_edge(label, interval))
    spread = float((mine.weight * (mine.tau / tau - 1).square()).sum())
    blur = signal.x_variance * len(signal.x) / signal.sigma**2
    return Recovery(
        Status.PROBABLE if spectrum.even and confidence >= SURE else Status.GUESS,
        _why(spectrum, index, confidence),
        label=label,
        feature=signal.x / tau,
        scalar=size if tau > 0 else -size,
        error=error if spectrum.even else math.inf,
        feature_error=(spread + blur) ** 0.5,
        scale=abs(tau) / size,
        noise=spectrum.noise,
        # Where the noise is not what is assumed, the figures are not calibrated.
        confidence=confidence if spectrum.even else None,
        interval=interval if spectrum.even else None,
    )


def _to_the_edge(label: Tensor, interval: Tensor) -> float:
    """How far, in L1, the label is from itself without the entries that may well be zero."""
    edge = torch.where(interval[0] == 0, 0.0, label)
    if not bool(edge.any()):
        return 0.0
    return float((edge / edge.sum() - label).abs().sum())


def fits(posterior: Posterior, points: Points) -> bool:
    """Whether noise explains how far the best label is from the family."""
    if not points.log.isfinite().any():
        return False
    best = int(points.log.amax(-1).argmax())
    misfit = points.misfit.flatten()[best]
    weights = points.weights.shape[-1] + int(posterior.scale_unknown)
    freedom = len(posterior.b) - 2 - weights
    if freedom < 1:
        return True
    half = misfit.new_tensor(freedom / 2)
    return bool(torch.special.gammaincc(half, misfit / 2) > UNFIT)


def _why(spectrum: Spectrum, index: int, confidence: float) -> str:
    found = f"noise of standard deviation {spectrum.noise:.2g} on the head's gradient"
    if not spectrum.even:
        return (
            f"what one sample cannot explain ({found}) is not independent noise of equal size: the "
            f"share was pruned, rounded or altered otherwise; class {index} is a guess, and its "
            "probability is not known"
        )
    sure = "most probable" if confidence >= SURE else "a guess"
    return f"{found}; class {index} is {sure}, with a probability of {confidence:.3g}"
