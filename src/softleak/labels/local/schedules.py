"""Widen the error of a label by what a learning rate that changed from step to step would do.

A client states one rate. With a schedule of the same mean, the update is that of another label, and
the equations of the label's family test the schedule only as sharply as they tell the change of the
predictions from that of the scalar. Everything is linear at the solution.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from softleak.core.families import AnyLabel, Family
from softleak.core.knowledge import Knowledge
from softleak.core.results import Recovery, Status
from softleak.labels.certify import Doubt
from softleak.labels.curve import Curve, distance
from softleak.labels.review import doubted

SCHEDULE_STEP = 1e-3  # of the rate: how far it is changed to see what moves
SCHEDULE_MISFIT = 4.0  # errors of an equation that may be a schedule's: twice what fits, each way
SCHEDULE_DEGREES = 3  # of the polynomials in the number of the step that rates may follow


class CurveOfSteps(Curve, Protocol):
    """Labels behind an update of several steps."""

    @property
    def steps(self) -> int:
        """Return the number of steps."""

    def with_rates(self, rates: tuple[float, ...]) -> Curve:
        """Return the curve at other rates, each relative to the one stated."""


def schedules_of(steps: int) -> Tensor:
    """Return changes (S, steps) of the rate of mean zero, each at most as large as the rate."""
    along = torch.linspace(-1, 1, steps, dtype=torch.double)
    powers = torch.stack([along**k for k in range(min(SCHEDULE_DEGREES, steps - 1) + 1)], 1)
    basis: Tensor = torch.linalg.qr(powers).Q[:, 1:].T
    return basis / basis.abs().amax(1, keepdim=True)


def allow_for_schedules(
    curve: CurveOfSteps, family: Family, knowledge: Knowledge, answer: Recovery
) -> Recovery:
    """Return the answer for one client, UNIQUE only if no change of its rate moves it far."""
    simple = not isinstance(family, AnyLabel) and not isinstance(answer.family, AnyLabel)
    known = answer.status is Status.UNIQUE and answer.scalar is not None
    if curve.steps == 1 or not simple or not known:
        return answer
    error, of_scalar = _moved(curve, family, torch.tensor([[answer.scalar]], dtype=torch.double))
    wider = replace(
        answer,
        error=max(answer.error, error),
        feature_error=max(answer.feature_error, of_scalar),
    )
    wide = not wider.error <= knowledge.tolerance
    if not wide:
        return wider
    return replace(doubted(wider, Doubt.CLIENT_OPEN.value), complete=answer.complete)


def _moved(curve: CurveOfSteps, family: Family, t: Tensor) -> tuple[float, float]:
    """Return how far schedules move the label in L1, and the logarithm of the scalar ``t`` (1, 1).

    They move along with the scalar, as long as the family's equations hold to within rounding.
    """
    y = curve.labels(t)[0]
    rest, error = distance(family, y, curve.errors(t, y))
    size, h = SCHEDULE_MISFIT * y.shape[-1] ** 0.5, SCHEDULE_STEP
    rates = (tuple((1 + h * change).tolist()) for change in schedules_of(curve.steps))
    told = [curve.with_rates(one).labels(t)[0] for one in rates]
    moved = torch.cat([*told, curve.labels(t * (1 + h))[0]])
    labels = (family.project(moved) - family.project(y))[:, 0] / h  # (S, C)
    rows = ((distance(family, moved, error)[0] - rest) / error)[:, 0] / h
    limits = size * torch.eye(len(rows), dtype=rows.dtype, device=rows.device)[:-1]
    covariance = torch.linalg.pinv(rows @ rows.T + limits.T @ limits, hermitian=True)
    of_labels = torch.einsum("sc,sr,rc->c", labels, covariance, labels).clamp_min(0).sqrt()
    return size * float(of_labels.sum()), size * float(covariance[-1, -1].clamp_min(0).sqrt())
