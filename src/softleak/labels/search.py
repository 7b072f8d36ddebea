"""Search a curve of labels: every minimum over a closed interval, and how wide it is.

The search is vectorised over clients, grid and candidates. It runs in float64 and needs no
derivative, so that a family needs no more than ``project``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from softleak.core.families import Family
from softleak.labels.curve import Curve, Interval, in_pieces, misfit, spread, spread_of, unfit_up_to

SEARCH_CLOSE = 1e5  # a misfit that a better scalar may yet bring down
SEARCH_FIT = 1.0  # a misfit that rounding explains, in units of its bound
SEARCH_SECTION = 33  # points that a bracket is cut into at each level of a zoom
SEARCH_FEWER = 9  # the same with many classes, where a level takes two steps
SEARCH_MANY_POINTS = 1600  # classes are many if fewer scalars than this are evaluated at once
SEARCH_FIRST_LEVELS = 3  # levels of a 16-fold zoom for every minimum
SEARCH_LAST_LEVELS = 11  # levels of a 16-fold zoom for minima that may reach zero
SEARCH_FALLING = 0.5  # of the misfit one level before: what still counts as falling
SEARCH_EDGE_BITS = 48  # halvings of a cell: the narrowest interval whose end is looked for
SEARCH_EDGE_LEVELS = 12  # levels onto the end of an interval, of which most need three
SEARCH_EDGE_PART = 1e-4  # of the way to the end of an interval: how closely it is found
SEARCH_NEARLY = 0.1  # a spread from a simpler family that may hide a solution in a cell
SEARCH_FLOAT64_NOISE = 1e-9  # relative: what float64 leaves of a constant spread
SEARCH_SHALLOW = 100.0  # a misfit of which rounding, not the distance from a solution, decides
SEARCH_HIDDEN_POINTS = 257  # points a cell is cut into where rounding may hide a solution
SEARCH_SAME = 1e-12  # relative: two starts that lead to one minimum end this close together
SEARCH_SLOPE = 1e-3  # the depth of a minimum on the grid
SEARCH_HIDDEN_DEPTH = 0.5  # the depth of a narrow minimum next to a solution
SEARCH_MOST = 64  # solutions of one row; where more fit, rounding parts a continuum into pieces


@dataclass(frozen=True, eq=False)
class Minima:
    """Minima of all ``client``s (K,), and the scalars from ``low`` to ``high`` around that fit."""

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
        return Minima(*(column[rows] for column in vars(self).values()))

    @property
    def fits(self) -> Tensor:
        """Return (K,) whether rounding explains the misfit."""
        return self.misfit <= SEARCH_FIT


Brackets = tuple[Tensor, Tensor, Tensor]  # row and both ends, (K,) each


def local_minima(loss: Tensor, grid: Tensor, reach: int = 1, depth: float = 0.0) -> Brackets:
    """Return row and ``reach``-th grid neighbours (K,) of the local minima of ``loss`` (R, T)."""
    padded = F.pad(loss, (1, 1), value=math.inf)
    before, after = padded[:, :-2], padded[:, 2:]
    # Strictly lower than on one side only, and by more than noise: a plateau yields one point.
    lowest = loss < before * (1 - SEARCH_FLOAT64_NOISE)
    lowest &= loss * (1 - SEARCH_FLOAT64_NOISE) <= after
    if depth:
        lowest &= torch.maximum(before, after) > loss * (1 + depth)
    row, at = lowest.nonzero(as_tuple=True)
    ends = (at + _ways((-reach, reach), at.device)[:, None]).clamp_(0, grid.shape[1] - 1)
    left, right = grid[row, ends]
    return row, left, right


def sections(left: Tensor, right: Tensor, points: int) -> Tensor:
    """Return brackets (K,) cut into as many ``points`` (K, points), their ends among them."""
    steps = _even_steps(points, left.dtype, left.device)
    return torch.lerp(left[:, None], right[:, None], steps)


# These serve inside inference mode and outside.


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _even_steps(points: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return as many ``points`` from zero to one."""
    return torch.linspace(0, 1, points, dtype=dtype, device=device)


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def _ways(ways: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the ways (K,) from a place to others, as numbers to add to it."""
    return torch.tensor(ways, device=device)


def zoom(
    curve: Curve, family: Family, left: Tensor, right: Tensor, levels: int, *, many: bool
) -> tuple[Tensor, Tensor]:
    """Cut brackets (K,) into sections around the lowest point of the spread, again and again.

    Return that point between its neighbours (3, K), and the spread at the three (3, K). With
    ``many`` classes points cost more than steps: a level is taken in two steps of fewer points.
    """
    count, steps = (SEARCH_FEWER, 2 * levels) if many else (SEARCH_SECTION, levels)
    for _ in range(steps):
        points = sections(left, right, count)
        values = spread(curve, family, points)
        around = _around(values.argmin(-1, keepdim=True), count)
        three = points.gather(1, around).T
        left, _, right = three
    return three, values.gather(1, around).T


def descend(
    loss: Callable[[Tensor, Tensor], Tensor], left: Tensor, right: Tensor, levels: int
) -> tuple[Tensor, Tensor]:
    """Return the lowest points (K,) of brackets (K,), and the ``loss`` of some (A,) at (A, S)."""
    lowest, least = left.clone(), torch.full_like(left, math.inf)
    open_ = torch.arange(len(left), device=left.device)
    before = least.clone()
    for _ in range(levels):
        if not len(open_):
            break
        points = sections(left, right, SEARCH_SECTION)
        best, at = loss(open_, points).min(-1, keepdim=True)
        left, middle, right = points.gather(1, _around(at, SEARCH_SECTION)).unbind(1)
        best = best[:, 0]
        lowest[open_], least[open_] = middle, best
        going = (best > SEARCH_FIT) | (best < SEARCH_FALLING * before)
        before = best
        if not bool(going.all()):
            open_, left, right, before = open_[going], left[going], right[going], best[going]
    return lowest, least


def _around(at: Tensor, count: int) -> Tensor:
    """Return the places (K, 3) ``at`` (K, 1) and next to it, of as many as ``count``."""
    return (at + _ways((-1, 0, 1), at.device)).clamp_(0, count - 1)


def edge_of(loss: Callable[[Tensor, Tensor], Tensor], good: Tensor, bad: Tensor) -> Tensor:
    """Return the first point (K,) that does not fit on the way from ``good`` to ``bad`` (K,).

    ``loss`` is that of ``descend``. The first points double their distance from ``good`` again and
    again, since an interval may be as narrow as rounding. The next ones lie around the place where
    a straight line between the ends of the bracket says that the misfit is too large.
    """
    start, edge = good, bad.clone()
    open_ = torch.arange(len(good), device=good.device)
    bits = torch.linspace(-SEARCH_EDGE_BITS, 0, SEARCH_SECTION - 1, dtype=good.dtype)
    steps = F.pad(bits.exp2(), (1, 0)).to(good.device).expand(len(good), -1)
    near = good.new_tensor([side * 2.0**-k for side in (-1, 1) for k in (3, 6, 9, 12)])
    for _ in range(SEARCH_EDGE_LEVELS):
        points = torch.lerp(good[:, None], bad[:, None], steps)
        values = loss(open_, points)
        inside = (values <= SEARCH_FIT).to(torch.int8).cummin(-1).values.sum(-1, keepdim=True)
        ends = inside.clamp_(1, points.shape[1] - 1) + _ways((-1, 0), good.device)
        good, bad = points.gather(1, ends).unbind(1)
        edge[open_] = bad
        wide = (bad - good).abs() > SEARCH_EDGE_PART * (bad - start[open_]).abs()
        if not bool(wide.any()):
            break
        open_, good, bad = open_[wide], good[wide], bad[wide]
        # Parts of the brackets, in order, many of them where a line crosses what fits.
        below, above = values.gather(1, ends)[wide].unbind(1)
        at = ((SEARCH_FIT - below) / (above - below)).nan_to_num(0.5, 0.5, 0.5)[:, None]
        whole = _even_steps(5, at.dtype, at.device).expand(len(at), -1)
        steps = torch.cat([at + near, whole], 1).clamp(0, 1).sort(-1).values
    return edge


Found = tuple[Tensor, Tensor, Tensor]  # row, scalar and misfit of minima, (K,) each


@torch.inference_mode()
def search(curve: Curve, family: Family, where: Interval) -> Minima:
    """Return all minima of the spread on each interval, refined, with what fits around them."""
    parts = [_search(curve, family, where.client[rows], grid) for rows, grid in where.grids()]
    return Minima(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _search(curve: Curve, family: Family, client: Tensor, grid: Tensor) -> tuple[Tensor, ...]:
    """Return the columns of ``Minima`` of curves searched on one ``grid`` (R, T)."""
    mine, simpler = curve.take(client), getattr(family, "simpler", None)
    kinds = (family,) if simpler is None else (family, simpler)

    def levels(some: Curve, t: Tensor) -> tuple[Tensor, ...]:
        """Return the misfit (R, T) and the spreads of all kinds, from labels once."""
        y, size = some.labels(t)
        unfit = unfit_up_to(SEARCH_CLOSE, some, family, t, y)  # infinite if nothing brings it down
        return unfit, *(spread_of(kind, y, size) for kind in kinds)

    unfit, far, *near = in_pieces(levels, mine, grid)
    # What fits is a plateau, not noise.
    cells = local_minima(far.masked_fill(unfit <= SEARCH_FIT, 0.0), grid)
    found = [_refine(mine, family, *_cut(mine, family, cells))]
    hollows = local_minima(_up_to(SEARCH_CLOSE, unfit), grid, 2, SEARCH_SLOPE)
    few = ~_crowded(found[0][0][found[0][2] <= SEARCH_FIT], len(grid))[hollows[0]]
    row, left, right = (part[few] for part in hollows)
    found.append(_hidden_minima(mine, family, (row, left, right), *found[0]))
    if simpler is not None:
        found.append(_near_simpler(mine, family, simpler, local_minima(near[0], grid)))
    row, scalar, size = (torch.cat(parts) for parts in zip(*found, strict=True))
    every = Minima(row, scalar, scalar, scalar, size)
    alone = _distinct(_with_intervals(mine, family, grid, unfit > SEARCH_FIT, every))
    # What fits is told at the best point of its interval: a start may lead to any of it.
    wide = alone.fits.nonzero()[:, 0]
    ends, loss = alone.take(wide), _misfits(mine.take(alone.client[wide]), family, len(wide))
    scalar, size = alone.scalar.clone(), alone.misfit.clone()
    scalar[wide], size[wide] = descend(loss, ends.low, ends.high, SEARCH_FIRST_LEVELS)
    return client[alone.client], scalar, alone.low, alone.high, size


def _misfits(curve: Curve, family: Family, count: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the misfit (A, S) as a function of which of ``count`` curves (A,) and scalars."""

    def loss(some: Tensor, t: Tensor) -> Tensor:
        return misfit(curve if len(some) == count else curve.take(some), family, t)

    return loss


def _distinct(minima: Minima) -> Minima:
    """Return without the second of two whose intervals meet: different starts led there."""
    order = minima.scalar.argsort()
    order = order[minima.client[order].argsort(stable=True)]
    client, fits = minima.client[order], minima.fits[order]
    low, high = minima.low[order], minima.high[order]
    meets = (client[1:] == client[:-1]) & fits[1:] & fits[:-1]
    meets &= low[1:] <= high[:-1] + SEARCH_SAME * high[:-1].abs()
    first = F.pad(~meets, (1, 0), value=True)
    return minima.take(order[first])


def _cut(curve: Curve, family: Family, cells: Brackets) -> Brackets:
    """Return the local minima of the spread within cells: two solutions may share one."""
    row, left, right = cells
    finer = sections(left, right, SEARCH_SECTION)
    inner, left, right = local_minima(spread(curve.take(row), family, finer), finer)
    return row[inner], left, right


def _hidden_minima(
    curve: Curve, family: Family, cells: Brackets, known_row: Tensor, known: Tensor, size: Tensor
) -> Found:
    """Return solutions that the spread does not show.

    Where one entry's rounding outweighs all others together, the spread follows that entry and has
    its minima where the rounding put them; the misfit has one at the solution, and it is narrow.
    Where a ``known`` minimum (K,) fits already, the minimum around it would only lead there again.
    """
    row, left, right = cells
    finer = sections(left, right, SEARCH_HIDDEN_POINTS)
    unfit = _up_to(SEARCH_SHALLOW, misfit(curve.take(row), family, finer, SEARCH_SHALLOW))
    inner, left, right = local_minima(unfit, finer, depth=SEARCH_HIDDEN_DEPTH)
    row = row[inner]
    low, high = torch.minimum(left, right)[:, None], torch.maximum(left, right)[:, None]
    again = (row[:, None] == known_row) & (low <= known) & (known <= high) & (size <= SEARCH_FIT)
    row, left, right = (one[~again.any(-1)] for one in (row, left, right))
    levels = SEARCH_LAST_LEVELS - SEARCH_FIRST_LEVELS
    return row, *descend(_misfits(curve.take(row), family, len(row)), left, right, levels)


def _up_to(limit: float, misfit: Tensor) -> Tensor:
    """Return the misfit with all that fit alike, and infinite above the limit."""
    return torch.where(misfit <= SEARCH_FIT, 0.0, misfit.masked_fill(misfit > limit, math.inf))


def _refine(curve: Curve, family: Family, row: Tensor, left: Tensor, right: Tensor) -> Found:
    """Return the best point of each bracket (K,), of the misfit where that may reach zero."""
    every = curve.take(row)
    levels, many = SEARCH_FIRST_LEVELS - 1, every.points_at_once < SEARCH_MANY_POINTS
    (_, scalar, _), (near, lowest, far) = zoom(every, family, left, right, levels, many=many)
    # A minimum at zero is V-shaped at every scale; one above zero is flat by now.
    sharp = (lowest < 0.9 * torch.maximum(near, far)) | (lowest == 0)
    scalar = scalar.clone()
    deepest = _misfits(curve.take(row[sharp]), family, int(sharp.sum()))
    scalar[sharp] = descend(deepest, left[sharp], right[sharp], SEARCH_LAST_LEVELS)[0]
    return row, scalar, misfit(every, family, scalar[:, None])[:, 0]


def _near_simpler(curve: Curve, family: Family, simpler: Family, cells: Brackets) -> Found:
    """Return solutions close to a simpler family.

    A mix with a very small second weight is the top two only within a sliver of ``t`` that falls
    between grid points. The simpler family has a broad minimum there, and it lies in the sliver.
    """
    row, left, right = _cut(curve, simpler, cells)
    every = curve.take(row)
    levels, many = 2 * SEARCH_FIRST_LEVELS, every.points_at_once < SEARCH_MANY_POINTS
    (_, scalar, _), (_, far, _) = zoom(every, simpler, left, right, levels, many=many)
    rest = spread(every, family, scalar[:, None])[:, 0]
    close = (far < SEARCH_NEARLY) & (rest < far / 2)
    row, scalar = row[close], scalar[close]
    some = curve.take(row)
    scales = 2.0 ** torch.arange(-50, -3, dtype=scalar.dtype, device=scalar.device)
    steps = torch.cat([-scales.flip(0), scales.new_zeros(1), scales])
    points = scalar[:, None] * (1 + steps)
    best = misfit(some, family, points).argmin(-1, keepdim=True)
    left, _, right = points.gather(1, _around(best, len(steps))).unbind(1)
    return row, *descend(_misfits(some, family, len(row)), left, right, SEARCH_LAST_LEVELS)


def _with_intervals(
    curve: Curve, family: Family, grid: Tensor, unfit: Tensor, minima: Minima
) -> Minima:
    """Return the minima with how far one may go from each that fits, and still fit."""
    order = minima.scalar.argsort()
    found = _few(minima.take(order[minima.client[order].argsort(stable=True)]))
    todo = found.fits & (found.low == found.high)
    while bool(todo.any()):
        # The first of each row that is left: rows come in order.
        place = todo.nonzero()[:, 0]
        row = found.client[place]
        first = place[F.pad(row[1:] != row[:-1], (1, 0), value=True)]
        ends = _ends(curve, family, grid, unfit, found.client[first], found.scalar[first])
        found.low[first], found.high[first] = ends.amin(0), ends.amax(0)
        todo[first] = False
        mine = found.client[:, None] == found.client[first]
        scalar = found.scalar[:, None]
        inside = (found.low[first] <= scalar) & (scalar <= found.high[first])
        kept = ~(todo & (mine & inside).any(-1))
        found, todo = found.take(kept.nonzero()[:, 0]), todo[kept]
    return found


def _crowded(rows: Tensor, count: int = 0) -> Tensor:
    """Return which rows (R,) hold too many solutions, of the rows (K,) of all that fit."""
    return rows.bincount(minlength=count) > SEARCH_MOST


def _few(minima: Minima) -> Minima:
    """Return ordered minima, those of a row merged into one interval where too many fit.

    If the prediction hardly depends on the scalar, a continuum of scalars fits but for rounding,
    and each of its thousands of pieces would be followed to its ends. The interval holds them all.
    """
    kept, low, high = torch.ones_like(minima.fits), minima.low.clone(), minima.high.clone()
    for row in _crowded(minima.client[minima.fits]).nonzero()[:, 0]:
        mine = ((minima.client == row) & minima.fits).nonzero()[:, 0]
        kept[mine[1:]] = False
        low[mine[0]], high[mine[0]] = minima.scalar[mine[0]], minima.scalar[mine[-1]]
    return replace(minima, low=low, high=high).take(kept.nonzero()[:, 0])


def _ends(
    curve: Curve, family: Family, grid: Tensor, unfit: Tensor, row: Tensor, start: Tensor
) -> Tensor:
    """Return how far one may go from scalars (K,) that fit, down and up (2, K), and still fit."""
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
    edge = edge_of(_misfits(both, family, len(twice)), near, far)
    edge = torch.where((beyond < 0) | (beyond == len(index)), near, edge)
    return edge.view(2, -1)
