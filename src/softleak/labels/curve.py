"""What a search runs along: labels of many clients as a function of one scalar each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from softleak.labels.families import Family, Weighted

DENSITY = 32  # grid points per factor e of |t|
FINE, FEW = 512, 8  # with fewer classes than that
COARSE, MANY = 16, 200  # with at least so many
FEWEST = 33
COARSENESS = 1.15  # grids are of sizes that differ by this factor, so that rows can share one


class Curve(Protocol):
    """Labels of N clients as a function of one scalar each: what a search runs along."""

    def labels(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Labels ``y`` (N, S, C) at the scalars ``t`` (N, S), and ``‖p − y‖`` (N, S)."""
        ...

    def errors(self, t: Tensor, y: Tensor) -> Tensor:
        """(N, S, C) how far rounding may have moved each entry of ``y = labels(t)``."""
        ...

    def logits(self) -> Tensor | None:
        """(N, C) what the softmax is taken of, up to a factor, if that moves along the curve."""
        ...

    def take(self, rows: Tensor) -> Curve:
        """The curves of some clients, in that order, repetitions allowed."""
        ...


@dataclass(frozen=True, eq=False)
class Interval:
    """Where to search, one row a curve: |t| from ``smallest`` to ``largest``, with a sign. (R,)."""

    client: Tensor
    sign: Tensor
    smallest: Tensor
    largest: Tensor
    density: int = DENSITY

    def grids(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows (R',) that need equally many points, and these (R', T), ascending in |t|.

        They are evenly spaced in its logarithm. How many a row gets depends on that row alone, so
        that no answer depends on what else is in its batch.
        """
        start, stop = self.smallest.log(), self.largest.log()
        wanted = ((stop - start) * self.density / FEWEST).clamp_min(1.0)
        level = (wanted.log() / math.log(COARSENESS)).ceil()
        for one in sorted(set(level.tolist())):
            rows = (level == one).nonzero()[:, 0]
            points = math.ceil(FEWEST * COARSENESS**one)
            steps = torch.linspace(0, 1, points, dtype=start.dtype, device=start.device)
            sizes = torch.lerp(start[rows, None], stop[rows, None], steps).exp()
            yield rows, sizes.mul(self.sign[rows, None])


def density_for(classes: int) -> int:
    """Grid points per factor e: few classes mean few equations and many solutions, close by."""
    if classes >= MANY:
        return COARSE  # many equations make wide valleys
    return FINE if classes < FEW else DENSITY


def spread(curve: Curve, family: Family, t: Tensor) -> Tensor:
    """(N, S) Eq. 5 made scale-free: the distance of ``ŷ/‖p − ŷ‖`` from the family."""
    y, size = curve.labels(t)
    far: Tensor = torch.linalg.vector_norm(y - family.project(y), dim=-1)
    return far / size


def distance(family: Family, y: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """How far labels (…, C) are from a family, entry by entry, and how far rounding explains it."""
    if isinstance(family, Weighted):
        nearest, moved = family.nearest(y, error)
    else:
        nearest = family.project(y)
        # The nearest member moves with the entries it is made of.
        moved = (family.project(y + error) - nearest).abs()
    return y - nearest, error + moved


def root_mean_square(rest: Tensor, error: Tensor) -> Tensor:
    """(…) a distance (…, C) in units of its error; entries a family leaves free say nothing."""
    count = (rest != 0).sum(-1).clamp_min(1)
    return ((rest / error).square().sum(-1) / count).sqrt()


def residual(curve: Curve, family: Family, t: Tensor) -> tuple[Tensor, Tensor]:
    """(N, S, C) the distance from the family at scalars (N, S), and what rounding explains."""
    y, _ = curve.labels(t)
    return distance(family, y, curve.errors(t, y))


def misfit(curve: Curve, family: Family, t: Tensor) -> Tensor:
    """(N, S) the distance from the family in units of rounding error, root mean square."""
    return root_mean_square(*residual(curve, family, t))
