"""What a search runs along: labels of many clients as a function of one scalar each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from softleak.labels.families import Family

DENSITY = 32  # grid points per factor e of |t|
FINE, FEW = 512, 8  # with fewer classes than that
FEWEST = 33


class Curve(Protocol):
    """Labels of N clients as a function of one scalar each: what a search runs along."""

    def labels(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Labels ``y`` (N, S, C) at the scalars ``t`` (N, S), and ``‖p − y‖`` (N, S)."""
        ...

    def errors(self, t: Tensor, y: Tensor) -> Tensor:
        """(N, S, C) how far rounding may have moved each entry of ``y = labels(t)``."""
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

    def grid(self) -> Tensor:
        """(R, T) ascending in |t|, evenly spaced in its logarithm."""
        start, stop = self.smallest.log(), self.largest.log()
        points = max(math.ceil(float((stop - start).amax()) * self.density), FEWEST)
        steps = torch.linspace(0, 1, points, dtype=start.dtype, device=start.device)
        sizes = torch.lerp(start[:, None], stop[:, None], steps).exp()
        return sizes.mul(self.sign[:, None])


def density_for(classes: int) -> int:
    """Grid points per factor e: few classes mean few equations and many solutions, close by."""
    return FINE if classes < FEW else DENSITY


def spread(curve: Curve, family: Family, t: Tensor) -> Tensor:
    """(N, S) Eq. 5 made scale-free: the distance of ``ŷ/‖p − ŷ‖`` from the family."""
    y, size = curve.labels(t)
    far: Tensor = torch.linalg.vector_norm(y - family.project(y), dim=-1)
    return far / size


def misfit(curve: Curve, family: Family, t: Tensor) -> Tensor:
    """(N, S) the distance from the family in units of rounding error, root mean square."""
    y, _ = curve.labels(t)
    error = curve.errors(t, y)
    nearest = family.project(y)
    rest = y - nearest
    # The nearest member moves with the entries it is made of: a shared floor with their mean.
    moved = (family.project(y + error) - nearest).abs()
    count = (rest != 0).sum(-1).clamp_min(1)  # entries the family leaves free say nothing
    return ((rest / (error + moved)).square().sum(-1) / count).sqrt()
