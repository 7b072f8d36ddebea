"""The global search along a curve of labels: every minimum over a closed interval, and how wide.

Vectorised over clients, grid and candidates; float64; derivative-free, so that a family needs
no more than ``project``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from softleak.labels.curve import Curve, Interval, misfit, spread
from softleak.labels.families import Family, Nested

CLOSE = 1e5  # a misfit that a better scalar may yet bring down
FIT = 1.0  # a misfit that rounding explains, in units of its bound
SECTION = 33  # points a bracket is cut into at each level of a zoom
FIRST, LAST = 3, 11  # levels of 16-fold zoom: for every minimum, and for those that may reach zero
EDGE = 8  # levels of 32-fold zoom onto the end of an interval
NEARLY = 0.1  # a spread this small from a simpler family may hide a solution between grid points
NOISE = 1e-9  # relative: what float64 leaves of a constant spread
CHUNK = 1 << 22  # label entries evaluated at once


@dataclass(frozen=True, eq=False)
class Minima:
    """The minima of all clients, flat: ``client`` says whose. All (K,).

    ``low`` and ``high`` bound the scalars around a minimum that fit; equal where none does.
    """

    client: Tensor
    scalar: Tensor
    low: Tensor
    high: Tensor
    misfit: Tensor

    def within(self, low: Tensor, high: Tensor) -> Minima:
        """What is left of the intervals between other bounds (K,); what is not does not fit."""
        low, high = self.low.maximum(low), self.high.minimum(high)
        inside = torch.clamp(self.scalar, low, high)
        scalar = torch.where(low <= high, inside, self.scalar)
        misfit = torch.where(low <= high, self.misfit, math.inf)
        return Minima(self.client, scalar, low.minimum(scalar), high.maximum(scalar), misfit)

    @property
    def fits(self) -> Tensor:
        """(K,) whether rounding explains the misfit."""
        return self.misfit <= FIT


def search(curve: Curve, family: Family, where: Interval) -> Minima:
    """All minima of the spread on each interval, refined, with the scalars that fit around them."""
    grid = where.grid()
    mine = curve.take(where.client)
    row, left, right = _brackets(mine, family, grid)
    scalar = _refine(mine, family, row, left, right)
    if isinstance(family, Nested) and family.simpler is not None:
        near, needle = _needles(mine, family, family.simpler, grid)
        row, scalar = torch.cat([row, near]), torch.cat([scalar, needle])
    found = misfit(mine.take(row), family, scalar[:, None])[:, 0]
    low, high = _fitting(mine, family, grid, row, scalar, found <= FIT)
    return Minima(where.client[row], scalar, low, high, found)


def _brackets(curve: Curve, family: Family, grid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Row and neighbours (K,) of every local minimum of the spread, on a grid (R, T) cut finer."""
    row, left, right = _minima(_in_chunks(lambda c, t: spread(c, family, t), curve, grid), grid)
    # Two solutions may share a cell.
    steps = torch.linspace(0, 1, SECTION, dtype=grid.dtype, device=grid.device)
    finer = torch.lerp(left[:, None], right[:, None], steps)
    inner, left, right = _minima(spread(curve.take(row), family, finer), finer)
    return row[inner], left, right


def _minima(loss: Tensor, grid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Row and grid neighbours (K,) of every local minimum of ``loss`` (R, T)."""
    padded = F.pad(loss, (1, 1), value=math.inf)
    # Strictly lower than on one side only, and by more than noise: a plateau yields one point.
    lowest = (loss < padded[:, :-2] * (1 - NOISE)) & (loss * (1 - NOISE) <= padded[:, 2:])
    row, at = lowest.nonzero(as_tuple=True)
    last = grid.shape[1] - 1
    return row, grid[row, (at - 1).clamp_min(0)], grid[row, (at + 1).clamp_max(last)]


def _in_chunks(value: Callable[[Curve, Tensor], Tensor], curve: Curve, grid: Tensor) -> Tensor:
    """``value`` (R, T) on the grid, in pieces that fit in memory."""
    classes = curve.labels(grid[:, :1])[0].shape[-1]
    rows = max(CHUNK // (grid.shape[1] * classes), 1)
    if rows >= len(grid):
        return value(curve, grid)
    parts = torch.split(torch.arange(len(grid), device=grid.device), rows)
    return torch.cat([value(curve.take(part), grid[part]) for part in parts])


def _refine(curve: Curve, family: Family, row: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The best point of each bracket (K,): of the spread, or the misfit if it may reach zero."""
    every = curve.take(row)
    near, scalar, far = _zoom(lambda t: spread(every, family, t), left, right, FIRST - 1)
    lowest, *ends = spread(every, family, torch.stack([scalar, near, far], 1)).T
    # A minimum at zero is V-shaped at every scale; one above zero is flat by now.
    sharp = (lowest < 0.9 * torch.maximum(*ends)) | (lowest == 0)
    # So is one at zero once rounding, not the distance from it, decides; its misfit is small then.
    sharp |= misfit(every, family, scalar[:, None])[:, 0] <= CLOSE
    some = curve.take(row[sharp])
    scalar = scalar.clone()
    scalar[sharp] = _zoom(lambda t: misfit(some, family, t), left[sharp], right[sharp], LAST)[1]
    return scalar


def _needles(curve: Curve, family: Family, simpler: Family, grid: Tensor) -> tuple[Tensor, Tensor]:
    """Solutions close to a simpler family: row and scalar (K,).

    A mix with a very small second weight is the top two only within a sliver of ``t`` that falls
    between grid points. The simpler family has a broad minimum there, and it lies in the sliver.
    """
    row, left, right = _brackets(curve, simpler, grid)
    every = curve.take(row)
    scalar = _zoom(lambda t: spread(every, simpler, t), left, right, 2 * FIRST)[1]
    far, rest = (spread(every, kind, scalar[:, None])[:, 0] for kind in (simpler, family))
    close = (far < NEARLY) & (rest < far / 2)
    row, scalar = row[close], scalar[close]
    some = curve.take(row)
    scales = 2.0 ** torch.arange(-50, -3, dtype=scalar.dtype, device=scalar.device)
    steps = torch.cat([-scales.flip(0), scales.new_zeros(1), scales])
    points = scalar[:, None] * (1 + steps)
    best = misfit(some, family, points).argmin(-1, keepdim=True)
    ends = torch.cat([(best - 1).clamp_min(0), (best + 1).clamp_max(len(steps) - 1)], 1)
    left, right = points.gather(1, ends).unbind(1)
    return row, _zoom(lambda t: misfit(some, family, t), left, right, LAST)[1]


def _zoom(
    loss: Callable[[Tensor], Tensor], left: Tensor, right: Tensor, levels: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Cut brackets (K,) into sections around their lowest point, again and again."""
    steps = torch.linspace(0, 1, SECTION, dtype=left.dtype, device=left.device)
    middle = left
    for _ in range(levels):
        points = torch.lerp(left[:, None], right[:, None], steps)
        best = loss(points).argmin(-1, keepdim=True)
        around = torch.cat([(best - 1).clamp_min(0), best, (best + 1).clamp_max(SECTION - 1)], 1)
        left, middle, right = points.gather(1, around).unbind(1)
    return left, middle, right


def _fitting(
    curve: Curve, family: Family, grid: Tensor, row: Tensor, scalar: Tensor, good: Tensor
) -> tuple[Tensor, Tensor]:
    """How far one may go from each good minimum (K,), down and up, and still fit."""
    low, high = scalar.clone(), scalar.clone()
    row, start = row[good], scalar[good]
    if not len(row):
        return low, high
    inside, mine = curve.take(row), grid[row]
    bad = _in_chunks(lambda c, t: misfit(c, family, t), inside, mine) > FIT
    outward = mine.abs() > start.abs()[:, None]
    index = torch.arange(grid.shape[1], device=grid.device)
    down = torch.where(bad & ~outward, index, -1).amax(-1)
    up = torch.where(bad & outward, index, len(index)).amin(-1)
    beyond = torch.cat([down, up])  # the first grid point each way that does not fit, if any
    last = torch.cat([down + 1, up - 1])  # and the one before it, if it lies that way at all
    twice = torch.arange(len(row), device=row.device).repeat(2)
    passed = outward[twice, last] == (torch.arange(len(twice), device=row.device) >= len(row))
    near = torch.where(passed, mine[twice, last], start[twice])
    far = mine[twice, beyond.clamp(0, len(index) - 1)]
    both = inside.take(twice)
    edge = _edge(lambda t: misfit(both, family, t) <= FIT, near, far)
    edge = torch.where((beyond < 0) | (beyond == len(index)), near, edge)
    ends = edge.view(2, -1)
    low[good], high[good] = ends.amin(0), ends.amax(0)
    return low, high


def _edge(fits: Callable[[Tensor], Tensor], good: Tensor, bad: Tensor) -> Tensor:
    """The last point that fits on the way from ``good`` to ``bad`` (K,)."""
    steps = torch.linspace(0, 1, SECTION, dtype=good.dtype, device=good.device)
    for _ in range(EDGE):
        points = torch.lerp(good[:, None], bad[:, None], steps)
        inside = fits(points).to(torch.int8).cummin(-1).values.sum(-1, keepdim=True)
        inside = inside.clamp(1, SECTION - 1)
        good, bad = points.gather(1, torch.cat([inside - 1, inside], 1)).unbind(1)
    return good
