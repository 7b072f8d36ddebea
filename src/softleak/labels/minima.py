"""This module holds the minima of a search, and the settings by which they are refined."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SearchTolerances:
    """These settings refine every minimum of the curve."""

    close: float = 1e5  # a misfit that a better scalar may yet bring down
    fit: float = 1.0  # a misfit that rounding explains, in units of its bound
    section: int = 33  # points that a bracket is cut into at each level of a zoom
    fewer: int = 9  # the same with many classes, where a level takes two steps
    many_points: int = 1600  # classes are many if fewer scalars than this are evaluated at once
    first_levels: int = 3  # levels of a 16-fold zoom for every minimum
    last_levels: int = 11  # levels of a 16-fold zoom for minima that may reach zero
    falling: float = 0.5  # of the misfit one level before: what still counts as falling
    edge_bits: int = 48  # halvings of a cell: the narrowest interval whose end is looked for
    edge_levels: int = 12  # levels onto the end of an interval, of which most need three
    edge_part: float = 1e-4  # of the way to the end of an interval: how closely it is found
    nearly: float = 0.1  # a spread from a simpler family that may hide a solution in a cell
    float64_noise: float = 1e-9  # relative: what float64 leaves of a constant spread
    shallow: float = 100.0  # a misfit of which rounding, not the distance from a solution, decides
    valley_points: int = 257  # points a cell is cut into where rounding may hide a solution
    same: float = 1e-12  # relative: two roads to one minimum end this close together
    slope: float = 1e-3  # the depth of a valley's side on the grid
    valley: float = 0.5  # the depth of a valley's side next to a solution


SEARCH = SearchTolerances()


@dataclass(frozen=True, eq=False)
class Minima:
    """This holds the minima of all clients, flat: ``client`` says whose. All are (K,).

    ``low`` and ``high`` bound the scalars around a minimum that fit; they are equal where none
    does.
    """

    client: Tensor
    scalar: Tensor
    low: Tensor
    high: Tensor
    misfit: Tensor

    def within(self, low: Tensor, high: Tensor) -> Minima:
        """Return the intervals cut to other bounds (K,); what lies outside does not fit."""
        low, high = self.low.maximum(low), self.high.minimum(high)
        inside = torch.clamp(self.scalar, low, high)
        scalar = torch.where(low <= high, inside, self.scalar)
        misfit = torch.where(low <= high, self.misfit, math.inf)
        return Minima(self.client, scalar, low.minimum(scalar), high.maximum(scalar), misfit)

    def take(self, rows: Tensor) -> Minima:
        """Return some of the minima, in that order."""
        return Minima(
            self.client[rows], self.scalar[rows], self.low[rows], self.high[rows], self.misfit[rows]
        )

    @property
    def fits(self) -> Tensor:
        """Return (K,) whether rounding explains the misfit."""
        return self.misfit <= SEARCH.fit
