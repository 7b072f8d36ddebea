"""This module holds the scalar view (Fig. 1 and 2 of the paper in one): the loss over ``t``, and
where it is zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.factors import factor
from softleak.families import Family, SmoothedMixed
from softleak.head import Head
from softleak.labels.curve import spread
from softleak.labels.pseudo import LARGEST, PseudoLabels
from softleak.results import Recovery, Status
from softleak.share import GradientShare

POINTS = 600  # an even number, so that zero is none of them
NEAR = 10.0 ** -torch.arange(1.0, 7.0, 0.5, dtype=torch.double)  # of t: closer and closer to a mark
REACH = LARGEST ** (1 / 3)
SHOWN: Family = SmoothedMixed(2)  # the loss drawn is the distance from these


@dataclass(frozen=True)
class Mark:
    """This is a scalar worth pointing at: a certified solution, from ``low`` to ``high``."""

    scalar: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class ScalarView:
    """This is ``ŷ(t) = softmax(a/t + b) − t u`` with its loss on a grid, and the certified scalars.

    ``a``, ``b``, ``u`` are (C,). ``loss`` is (S,) on cubes of evenly spaced numbers from −``reach``
    to ``reach``, which show small and large scalars alike; ``near`` (K, 2) are scalars and losses
    around the marks, where it falls to zero.
    """

    a: Tensor
    b: Tensor
    u: Tensor
    reach: float
    loss: Tensor
    near: Tensor
    marks: tuple[Mark, ...]

    @classmethod
    def of(cls, head: Head, share: GradientShare, recovery: Recovery) -> ScalarView | None:
        """Return the view of one share; None where no single sample is behind it."""
        if recovery.status in (Status.ZERO_GRADIENT, Status.NOT_SINGLE):
            return None
        unscaled = share if recovery.scale == 1.0 else share.scaled(1 / recovery.scale)
        pseudo = PseudoLabels.of(head, factor(head, [unscaled]))
        marks = tuple(Mark(c.scalar, c.low, c.high) for c in recovery.solutions)
        t = torch.cat([even_cubes(), _around(marks)]).to(head.W.device)
        loss = spread(pseudo, SHOWN, t[None])[0]
        near = torch.stack([t, loss], 1)[POINTS:].cpu()
        a, b, u = pseudo.a[0].cpu(), pseudo.b.cpu(), pseudo.u[0].cpu()
        return cls(a, b, u, REACH, loss[:POINTS].cpu(), near, marks)


def even_cubes() -> Tensor:
    """Return scalars ``t`` of both signs, denser near zero."""
    step = 2 * REACH / POINTS
    return (torch.arange(POINTS, dtype=torch.double).add(0.5).mul(step).sub(REACH)) ** 3


def _around(marks: tuple[Mark, ...]) -> Tensor:
    """Return scalars ever closer to each mark from both sides, and the mark, in ascending order."""
    sides = torch.cat([1 - NEAR, torch.ones(1, dtype=torch.double), 1 + NEAR])
    own = [mark.scalar * sides for mark in marks]
    return torch.cat(own).sort().values if own else torch.empty(0, dtype=torch.double)
