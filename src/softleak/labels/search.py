"""The global search along a curve of labels: every minimum over a closed interval, and how wide.

Vectorised over clients, grid and candidates; float64; derivative-free, so that a family needs
no more than ``project``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

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
SHALLOW = 100.0  # a misfit in which rounding, not the distance from a solution, has its say
VALLEYS = 257  # points a cell of the grid is cut into where rounding may hide a solution
SAME = 1e-12  # relative: two roads to one minimum end this close together
SLOPE, VALLEY = 1e-3, 0.5  # depth of a valley's side: on the grid, and next to a solution

Brackets = tuple[Tensor, Tensor, Tensor]  # row and both ends, (K,) each


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

    def take(self, rows: Tensor) -> Minima:
        """Some of the minima, in that order."""
        return Minima(
            self.client[rows], self.scalar[rows], self.low[rows], self.high[rows], self.misfit[rows]
        )

    @property
    def fits(self) -> Tensor:
        """(K,) whether rounding explains the misfit."""
        return self.misfit <= FIT


def search(curve: Curve, family: Family, where: Interval) -> Minima:
    """All minima of the spread on each interval, refined, with the scalars that fit around them."""
    client = where.client
    parts = [_search(curve, family, client[rows], grid) for rows, grid in where.grids()]
    return Minima(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _search(curve: Curve, family: Family, client: Tensor, grid: Tensor) -> tuple[Tensor, ...]:
    """The columns of ``Minima`` of curves searched on one ``grid`` (R, T)."""
    mine = curve.take(client)
    unfit = _in_chunks(lambda c, t: misfit(c, family, t), mine, grid)
    far = _in_chunks(lambda c, t: spread(c, family, t), mine, grid)
    cells = _minima(far.masked_fill(unfit <= FIT, 0.0), grid)  # what fits is a plateau, not noise
    found = [_refine(mine, family, *_cut(mine, family, cells))]
    found.append(_valleys(mine, family, _minima(_up_to(CLOSE, unfit), grid, 2, SLOPE)))
    if isinstance(family, Nested) and family.simpler is not None:
        found.append(_needles(mine, family, family.simpler, grid))
    row, scalar = (torch.cat(parts) for parts in zip(*found, strict=True))
    size = misfit(mine.take(row), family, scalar[:, None])[:, 0]
    low, high = _fitting(mine, family, grid, unfit > FIT, row, scalar, size <= FIT)
    alone = _distinct(Minima(row, scalar, low, high, size))
    settled = _settled(mine, family, alone)
    return (
        client[settled.client], settled.scalar, settled.low, settled.high, settled.misfit,
    )  # fmt: skip


def _settled(curve: Curve, family: Family, minima: Minima) -> Minima:
    """Those that fit at the best point of their interval: a road may end at any of it."""
    wide = minima.fits.nonzero()[:, 0]
    some, ends = curve.take(minima.client[wide]), minima.take(wide)
    scalar, size = minima.scalar.clone(), minima.misfit.clone()
    scalar[wide] = _zoom(lambda t: misfit(some, family, t), ends.low, ends.high, FIRST)[1]
    size[wide] = misfit(some, family, scalar[wide, None])[:, 0]
    return replace(minima, scalar=scalar, misfit=size)


def _distinct(minima: Minima) -> Minima:
    """Without the second of two that different roads led to: their intervals meet."""
    order = minima.scalar.argsort()
    order = order[minima.client[order].argsort(stable=True)]
    client, fits = minima.client[order], minima.fits[order]
    low, high = minima.low[order], minima.high[order]
    meets = (client[1:] == client[:-1]) & fits[1:] & fits[:-1]
    meets &= low[1:] <= high[:-1] + SAME * high[:-1].abs()
    first = F.pad(~meets, (1, 0), value=True)
    return minima.take(order[first])


def _cut(curve: Curve, family: Family, cells: Brackets) -> Brackets:
    """The local minima of the spread within cells: two solutions may share one."""
    row, left, right = cells
    finer = _sections(left, right, SECTION)
    inner, left, right = _minima(spread(curve.take(row), family, finer), finer)
    return row[inner], left, right


def _sections(left: Tensor, right: Tensor, points: int) -> Tensor:
    """Brackets (K,) cut into as many ``points`` (K, points), their ends among them."""
    steps = torch.linspace(0, 1, points, dtype=left.dtype, device=left.device)
    return torch.lerp(left[:, None], right[:, None], steps)


def _valleys(curve: Curve, family: Family, cells: Brackets) -> tuple[Tensor, Tensor]:
    """Solutions that the spread does not show: row and scalar (K,).

    Where one entry's rounding outweighs all others together, the spread follows that entry and has
    its minima where the rounding put them; the misfit has one at the solution, and it is narrow.
    """
    row, left, right = cells
    finer = _sections(left, right, VALLEYS)
    unfit = _up_to(SHALLOW, _in_chunks(lambda c, t: misfit(c, family, t), curve.take(row), finer))
    inner, left, right = _minima(unfit, finer, depth=VALLEY)
    row = row[inner]
    every = curve.take(row)
    return row, _zoom(lambda t: misfit(every, family, t), left, right, LAST - FIRST)[1]


def _up_to(limit: float, misfit: Tensor) -> Tensor:
    """The misfit as it counts for valleys: all that fit are alike, and none is above the limit."""
    return torch.where(misfit <= FIT, 0.0, misfit.masked_fill(misfit > limit, math.inf))


def _minima(loss: Tensor, grid: Tensor, reach: int = 1, depth: float = 0.0) -> Brackets:
    """Row and ``reach``-th grid neighbours (K,) of the local minima of ``loss`` (R, T).

    The higher of the neighbouring values has to exceed a minimum by the part ``depth`` of it.
    """
    padded = F.pad(loss, (1, 1), value=math.inf)
    # Strictly lower than on one side only, and by more than noise: a plateau yields one point.
    lowest = (loss < padded[:, :-2] * (1 - NOISE)) & (loss * (1 - NOISE) <= padded[:, 2:])
    lowest &= torch.maximum(padded[:, :-2], padded[:, 2:]) > loss * (1 + depth)
    row, at = lowest.nonzero(as_tuple=True)
    last = grid.shape[1] - 1
    return row, grid[row, (at - reach).clamp_min(0)], grid[row, (at + reach).clamp_max(last)]


def _in_chunks(value: Callable[[Curve, Tensor], Tensor], curve: Curve, grid: Tensor) -> Tensor:
    """``value`` (R, T) on the grid, in pieces that fit in memory."""
    classes = curve.labels(grid[:, :1])[0].shape[-1]
    rows = max(CHUNK // (grid.shape[1] * classes), 1)
    if rows >= len(grid):
        return value(curve, grid)
    parts = torch.split(torch.arange(len(grid), device=grid.device), rows)
    return torch.cat([value(curve.take(part), grid[part]) for part in parts])


def _refine(
    curve: Curve, family: Family, row: Tensor, left: Tensor, right: Tensor
) -> tuple[Tensor, Tensor]:
    """The best point of each bracket (K,): of the spread, or the misfit if it may reach zero."""
    every = curve.take(row)
    near, scalar, far = _zoom(lambda t: spread(every, family, t), left, right, FIRST - 1)
    lowest, *ends = spread(every, family, torch.stack([scalar, near, far], 1)).T
    # A minimum at zero is V-shaped at every scale; one above zero is flat by now.
    sharp = (lowest < 0.9 * torch.maximum(*ends)) | (lowest == 0)
    some = curve.take(row[sharp])
    scalar = scalar.clone()
    scalar[sharp] = _zoom(lambda t: misfit(some, family, t), left[sharp], right[sharp], LAST)[1]
    return row, scalar


def _needles(curve: Curve, family: Family, simpler: Family, grid: Tensor) -> tuple[Tensor, Tensor]:
    """Solutions close to a simpler family: row and scalar (K,).

    A mix with a very small second weight is the top two only within a sliver of ``t`` that falls
    between grid points. The simpler family has a broad minimum there, and it lies in the sliver.
    """
    cells = _minima(_in_chunks(lambda c, t: spread(c, simpler, t), curve, grid), grid)
    row, left, right = _cut(curve, simpler, cells)
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
    middle = left
    for _ in range(levels):
        points = _sections(left, right, SECTION)
        best = loss(points).argmin(-1, keepdim=True)
        around = torch.cat([(best - 1).clamp_min(0), best, (best + 1).clamp_max(SECTION - 1)], 1)
        left, middle, right = points.gather(1, around).unbind(1)
    return left, middle, right


def _fitting(
    curve: Curve, family: Family, grid: Tensor, unfit: Tensor,
    row: Tensor, scalar: Tensor, good: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """How far one may go from each good minimum (K,), down and up, and still fit."""
    low, high = scalar.clone(), scalar.clone()
    row, start = row[good], scalar[good]
    if not len(row):
        return low, high
    inside, mine, bad = curve.take(row), grid[row], unfit[row]
    outward = mine.abs() > start.abs()[:, None]
    index = torch.arange(grid.shape[1], device=grid.device)
    down = torch.where(bad & ~outward, index, -1).amax(-1)
    up = torch.where(bad & outward, index, len(index)).amin(-1)
    beyond = torch.cat([down, up])  # the first grid point each way that does not fit, if any
    before = torch.cat([down + 1, up - 1])  # and the one before it, if it lies that way at all
    last = before.clamp(0, len(index) - 1)  # a minimum may lie at an end of the grid, or beyond
    twice = torch.arange(len(row), device=row.device).repeat(2)
    passed = outward[twice, last] == (torch.arange(len(twice), device=row.device) >= len(row))
    near = torch.where(passed & (last == before), mine[twice, last], start[twice])
    far = mine[twice, beyond.clamp(0, len(index) - 1)]
    both = inside.take(twice)
    edge = _edge(lambda t: misfit(both, family, t) <= FIT, near, far)
    edge = torch.where((beyond < 0) | (beyond == len(index)), near, edge)
    ends = edge.view(2, -1)
    low[good], high[good] = ends.amin(0), ends.amax(0)
    return low, high


def _edge(fits: Callable[[Tensor], Tensor], good: Tensor, bad: Tensor) -> Tensor:
    """The last point that fits on the way from ``good`` to ``bad`` (K,)."""
    for _ in range(EDGE):
        points = _sections(good, bad, SECTION)
        inside = fits(points).to(torch.int8).cummin(-1).values.sum(-1, keepdim=True)
        inside = inside.clamp(1, SECTION - 1)
        good, bad = points.gather(1, torch.cat([inside - 1, inside], 1)).unbind(1)
    return good
