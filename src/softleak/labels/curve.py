"""What a search runs along: labels of many clients as a function of one scalar each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from softleak.core.families import Family, distance_of, least_misfit_of, misfit_of, nearest_of

ENTRIES_AT_ONCE = 1 << 22  # entries of labels that are evaluated at once
CACHED_ENTRIES = 1 << 18  # entries of labels whose memory is used again from step to step
TELLING_ENTRIES = 64  # first entries of a label, which mostly tell if it is far from a family

# What spaces the grid of scalars, in points per factor e of |t|.
CURVE_GRID_DENSITY = 32  # points, if the classes are neither few nor many
CURVE_GRID_FINE = 512  # points with few classes
CURVE_GRID_FEW_CLASSES = 8  # classes below which solutions hide in slivers of t
CURVE_GRID_COARSE = 16  # points with many classes
CURVE_GRID_MANY_CLASSES = 200  # classes from which on a coarse grid suffices
CURVE_GRID_FEWEST = 33  # points of the smallest grid
CURVE_GRID_SIZE_FACTOR = 1.15  # between the sizes of grids, so that rows can share one


class Curve(Protocol):
    """Labels of N clients as a function of one scalar each: what a search runs along."""

    @property
    def points_at_once(self) -> int:
        """Return how many scalars are best evaluated together: their labels fit in the cache."""

    def labels(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return labels ``y`` (N, S, C) at the scalars ``t`` (N, S), and ``‖p − y‖`` (N, S)."""

    def errors(self, t: Tensor, y: Tensor) -> Tensor:
        """Return how far rounding may have moved each entry (N, S, C) of ``y = labels(t)``.

        If the curve ``errs_in_parts``, ``y`` may be the first entries alone.
        """

    def logits(self) -> Tensor | None:
        """Return what the softmax is taken of (N, C) up to a factor, None if it does not move."""

    def take(self, rows: Tensor) -> Curve:
        """Return the curves of some clients, in that order, repetitions allowed."""

    def interval(self) -> Interval:
        """Return the scalars that are searched."""


@dataclass(frozen=True, eq=False)
class Interval:
    """Where to search, one row a curve: |t| from ``smallest`` to ``largest``, with a sign. (R,)."""

    client: Tensor
    sign: Tensor
    smallest: Tensor
    largest: Tensor
    density: int = CURVE_GRID_DENSITY

    @classmethod
    def positive(
        cls, smallest: Tensor, largest: Tensor, density: int = CURVE_GRID_DENSITY
    ) -> Interval:
        """Return the positive scalars of every client between two bounds (N,)."""
        everyone = torch.arange(len(largest), device=largest.device)
        return cls(everyone, torch.ones_like(largest), smallest, largest, density)

    def grids(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Return rows (R',) that need equally many points, and these (R', T), ascending in |t|.

        They are evenly spaced in its logarithm. How many a row gets depends on its client alone, so
        that no answer depends on what else is in its batch.
        """
        start, stop = self.smallest.log(), self.largest.log()
        wanted = ((stop - start) * self.density / CURVE_GRID_FEWEST).clamp_min(1.0)
        level = (wanted.log() / math.log(CURVE_GRID_SIZE_FACTOR)).ceil()
        # Both signs of a client share one grid, and with it every step of the search.
        most = torch.zeros(int(self.client.max()) + 1).to(level)
        level = most.scatter_reduce(0, self.client, level, "amax")[self.client]
        for one in sorted(set(level.tolist())):
            rows = (level == one).nonzero()[:, 0]
            points = math.ceil(CURVE_GRID_FEWEST * CURVE_GRID_SIZE_FACTOR**one)
            steps = torch.linspace(0, 1, points, dtype=start.dtype, device=start.device)
            sizes = torch.lerp(start[rows, None], stop[rows, None], steps).exp()
            yield rows, sizes.mul(self.sign[rows, None])


def density_for(classes: int) -> int:
    """Return the grid points per factor e: few classes leave many solutions close together."""
    if classes >= CURVE_GRID_MANY_CLASSES:
        return CURVE_GRID_COARSE  # many equations make wide minima
    return CURVE_GRID_FINE if classes < CURVE_GRID_FEW_CLASSES else CURVE_GRID_DENSITY


def spread(curve: Curve, family: Family, t: Tensor) -> Tensor:
    """Return the scale-free loss (N, S) of Eq. 5: the distance of ``ŷ/‖p − ŷ‖`` from the family."""
    (found,) = in_pieces(lambda some, at: (spread_of(family, *some.labels(at)),), curve, t)
    return found


def in_pieces(
    values: Callable[[Curve, Tensor], tuple[Tensor, ...]], curve: Curve, t: Tensor
) -> tuple[Tensor, ...]:
    """Return ``values`` (N, S) at scalars ``t`` (N, S), in pieces that stay in the cache."""
    points = curve.points_at_once
    if t.numel() <= points:
        return values(curve, t)
    rows = max(points // t.shape[1], 1)
    columns = -(-t.shape[1] // -(-t.shape[1] // points))  # pieces of the same length
    found = []
    for part in torch.split(torch.arange(len(t), device=t.device), rows):
        mine = curve.take(part)
        row = [values(mine, some) for some in torch.split(t[part], columns, dim=1)]
        found.append([torch.cat(pieces, 1) for pieces in zip(*row, strict=True)])
    return tuple(torch.cat(pieces) for pieces in zip(*found, strict=True))


def spread_of(family: Family, y: Tensor, size: Tensor) -> Tensor:
    """Return the spread (N, S) of labels (N, S, C) whose ``‖p − y‖`` is ``size`` (N, S)."""
    return distance_of(family, y) / size


def distance(family: Family, y: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distance of labels (…, C) from a family by entry, and what of it is rounding."""
    nearest, moved = nearest_of(family, y, error)
    return y - nearest, error + moved


def on_simplex(y: Tensor) -> Tensor:
    """Return a label (C,) without negative entries, which sums to one."""
    kept = y.clamp_min(0)
    return kept / kept.sum()


def root_mean_square(rest: Tensor, error: Tensor) -> Tensor:
    """Return a distance (…, C) in units of its error, over the entries that a family determines."""
    count = (rest != 0).sum(-1).clamp_min(1)
    return ((rest / error).square().sum(-1) / count).sqrt()


def unfit_of(family: Family, y: Tensor, error: Tensor) -> Tensor:
    """Return the distance (…) of labels (…, C) from a family in units of their ``error``."""
    found = misfit_of(family, y, error)
    return root_mean_square(*distance(family, y, error)) if found is None else found


def unfit_up_to(limit: float, curve: Curve, family: Family, t: Tensor, y: Tensor) -> Tensor:
    """Return the misfit (N, S) of the labels ``y`` at ``t``, infinite where it is above a limit.

    Most labels along a curve are far from any family, and a few of their entries prove it. Where
    they do not, the misfit may be above the limit.
    """
    least = _least_unfit(curve, family, t, y)
    if least is None:
        return unfit_of(family, y, curve.errors(t, y))
    row, column = (~(least > limit)).nonzero(as_tuple=True)
    at, near = t[row, column][:, None], y[row, column][:, None]
    found = torch.full_like(least, math.inf)
    found[row, column] = unfit_of(family, near, curve.take(row).errors(at, near))[:, 0]
    return found


def _least_unfit(curve: Curve, family: Family, t: Tensor, y: Tensor) -> Tensor | None:
    """Return what the misfit (N, S) is at least by the first entries; None if they do not tell."""
    classes = y.shape[-1]
    if classes < 2 * TELLING_ENTRIES or not getattr(curve, "errs_in_parts", False):
        return None
    first = y[..., :TELLING_ENTRIES]
    return least_misfit_of(family, first, curve.errors(t, first), classes)


def residual(curve: Curve, family: Family, t: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distance (N, S, C) from the family at scalars (N, S), and its rounding."""
    y, _ = curve.labels(t)
    return distance(family, y, curve.errors(t, y))


def misfit(curve: Curve, family: Family, t: Tensor, limit: float = math.inf) -> Tensor:
    """Return the distance (N, S) from the family in units of rounding error, root mean square.

    Where it is above the limit it may be infinite instead.
    """

    def values(some: Curve, at: Tensor) -> tuple[Tensor]:
        y, _ = some.labels(at)
        if limit < math.inf:
            return (unfit_up_to(limit, some, family, at, y),)
        return (unfit_of(family, y, some.errors(at, y)),)

    (found,) = in_pieces(values, curve, t)
    return found
