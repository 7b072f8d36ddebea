"""This module reads the same numbers with a temperature that only the loss knows.

The gradient of the cross-entropy of ``z/T`` is ``δ = (softmax(z/T) − y)/T``. With the scalar ``τ``
known, so are the logits ``z``, and the label behind each ``T`` is ``y(T) = softmax(z/T) − T |τ|
u``. If the one at ``T = 1`` is not simple, but one elsewhere is, then somebody probably softened
the loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.families import KNOWN_FAMILIES, SmoothedMixed
from softleak.labels.curve import CURVE_GRID, Interval
from softleak.labels.pseudo import PseudoLabels
from softleak.labels.readings import READINGS
from softleak.labels.search import search
from softleak.results import Reading


@dataclass(frozen=True)
class TemperatureSettings:
    """These settings look for a temperature in the loss."""

    hottest: float = 32.0  # the largest temperature looked for, and the inverse of the smallest
    fewest_classes: int = 5  # classes: with fewer, some temperature fits every label


TEMPERATURES = TemperatureSettings()


FAMILY = SmoothedMixed(2)  # all simple labels are among these


@dataclass(frozen=True, eq=False)
class Tempered:
    """This is ``y(T)`` of N clients whose ``τ`` (N,) is known to within ``error`` (N,)."""

    pseudo: PseudoLabels
    tau: Tensor
    error: Tensor

    def labels(self, t: Tensor) -> tuple[Tensor, Tensor]:
        size = t * self.tau.abs()[:, None]
        u = self.pseudo.u * self.tau.sign()[:, None]
        return self._probabilities(t) - size[..., None] * u[:, None], size

    def errors(self, t: Tensor, y: Tensor) -> Tensor:
        p = self._probabilities(t)
        shift = self.pseudo.a.abs().amax(-1) * self.error / self.tau.square()
        size = (t * self.error[:, None])[..., None] * self.pseudo.u[:, None].abs()
        moved = self.pseudo.rounding(self.tau[:, None].expand_as(t), p, y)
        moved = moved + p * (1 - p) * shift[:, None, None]
        return moved / t.clamp_max(1.0)[..., None] + size  # the logits are divided by T

    @property
    def points_at_once(self) -> int:
        return self.pseudo.points_at_once

    def logits(self) -> Tensor:
        return self.pseudo.a / self.tau[:, None] + self.pseudo.b

    def take(self, rows: Tensor) -> Tempered:
        return Tempered(self.pseudo.take(rows), self.tau[rows], self.error[rows])

    def interval(self) -> Interval:
        """Return the temperatures above and below one."""
        ends = torch.full_like(self.tau, TEMPERATURES.hottest)
        everyone = torch.arange(len(ends), device=ends.device)
        return Interval(everyone, torch.ones_like(ends), 1 / ends, ends, CURVE_GRID.density)

    def _probabilities(self, t: Tensor) -> Tensor:
        return torch.softmax(self.logits()[:, None] / t[..., None], dim=-1)


def tempered_readings(pseudo: PseudoLabels, tau: Tensor, error: Tensor) -> list[Reading | None]:
    """Return a simple label at another temperature of the loss for each of N clients, if there is
    one.
    """
    found: list[Reading | None] = [None] * len(tau)
    if pseudo.u.shape[-1] < TEMPERATURES.fewest_classes:
        return found
    curve = Tempered(pseudo, tau, error)
    minima = search(curve, FAMILY, curve.interval())
    minima = minima.take(minima.fits.nonzero()[:, 0])
    some, at = curve.take(minima.client), minima.scalar[:, None]
    y, _ = some.labels(at)
    errors = some.errors(at, y)
    possible = (y >= -READINGS.slack_errors * errors).all(-1)[:, 0] & (
        (minima.scalar - 1).abs() > READINGS.same_scale
    )
    for row in possible.nonzero()[:, 0].tolist():
        reading = _reading(y[row, 0], float(errors[row].sum()), float(minima.scalar[row]))
        found[int(minima.client[row])] = reading
    return found


def _reading(y: Tensor, error: float, temperature: float) -> Reading:
    families = (
        one
        for one in KNOWN_FAMILIES
        if float((y - one.project(y)).abs().sum()) <= READINGS.slack_errors * error
    )
    family = next(families, FAMILY)
    label = family.project(y).clamp_min(0)
    return Reading(label / label.sum(), 1 / temperature, family, temperature)
