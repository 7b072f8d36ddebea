"""This module searches a curve of labels: every minimum over a closed interval, and how wide it is.

The search is vectorised over clients, grid and candidates. It runs in float64 and needs no
derivative, so that a family needs no more than ``project``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from softleak.families import Family
from softleak.families.contract import simpler_of
from softleak.labels.brackets import Brackets, descend, edge_of, local_minima, sections, zoom
from softleak.labels.curve import (
    Curve,
    Interval,
    in_pieces,
    misfit,
    spread,
    spread_of,
    unfit_up_to,
)
from softleak.labels.minima import SEARCH, Minima

Road = tuple[
    Tensor, Tensor, Tensor
]  # row, scalar and misfit of the minima that one way finds, (K,)


@torch.inference_mode()
def search(curve: Curve, family: Family, where: Interval) -> Minima:
    """Return all minima of the spread on each interval, refined, with what fits around them.

    It runs in inference mode, which takes a tenth off thousands of small steps.
    """
    client = where.client
    parts = [_search(curve, family, client[rows], grid) for rows, grid in where.grids()]
    return Minima(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _search(curve: Curve, family: Family, client: Tensor, grid: Tensor) -> tuple[Tensor, ...]:
    """Return the columns of ``Minima`` of curves searched on one ``grid`` (R, T)."""
    mine, simpler = curve.take(client), simpler_of(family)
    kinds = (family,) if simpler is None else (family, simpler)
    unfit, far, *near = in_pieces(lambda c, t: _levels(c, kinds, t), mine, grid)
    cells = local_minima(
        far.masked_fill(unfit <= SEARCH.fit, 0.0), grid
    )  # what fits is a plateau, not noise
    found = [_refine(mine, family, *_cut(mine, family, cells))]
    hollows = local_minima(_up_to(SEARCH.close, unfit), grid, 2, SEARCH.slope)
    found.append(_valleys(mine, family, hollows, *found[0]))
    if simpler is not None:
        found.append(_needles(mine, family, simpler, local_minima(near[0], grid)))
    row, scalar, size = (torch.cat(parts) for parts in zip(*found, strict=True))
    every = Minima(row, scalar, scalar, scalar, size)
    alone = _distinct(_with_intervals(mine, family, grid, unfit > SEARCH.fit, every))
    settled = _settled(mine, family, alone)
    return (
        client[settled.client], settled.scalar, settled.low, settled.high, settled.misfit,
    )  # fmt: skip


def _settled(curve: Curve, family: Family, minima: Minima) -> Minima:
    """Return those that fit at the best point of their interval: a road may end at any of it."""
    wide = minima.fits.nonzero()[:, 0]
    some, ends = curve.take(minima.client[wide]), minima.take(wide)
    scalar, size = minima.scalar.clone(), minima.misfit.clone()
    scalar[wide], size[wide] = descend(
        _misfits(some, family, len(wide)), ends.low, ends.high, SEARCH.first_levels
    )
    return replace(minima, scalar=scalar, misfit=size)


def _many(curve: Curve) -> bool:
    return curve.points_at_once < SEARCH.many_points


def _misfits(curve: Curve, family: Family, count: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the misfit (A, S) as a function of which of ``count`` curves (A,) and scalars."""

    def loss(some: Tensor, t: Tensor) -> Tensor:
        return misfit(curve if len(some) == count else curve.take(some), family, t)

    return loss


def _distinct(minima: Minima) -> Minima:
    """Return without the second of two that different roads led to: their intervals meet."""
    order = minima.scalar.argsort()
    order = order[minima.client[order].argsort(stable=True)]
    client, fits = minima.client[order], minima.fits[order]
    low, high = minima.low[order], minima.high[order]
    meets = (client[1:] == client[:-1]) & fits[1:] & fits[:-1]
    meets &= low[1:] <= high[:-1] + SEARCH.same * high[:-1].abs()
    first = F.pad(~meets, (1, 0), value=True)
    return minima.take(order[first])


def _cut(curve: Curve, family: Family, cells: Brackets) -> Brackets:
    """Return the local minima of the spread within cells: two solutions may share one."""
    row, left, right = cells
    finer = sections(left, right, SEARCH.section)
    inner, left, right = local_minima(spread(curve.take(row), family, finer), finer)
    return row[inner], left, right


def _valleys(
    curve: Curve, family: Family, cells: Brackets, known_row: Tensor, known: Tensor, size: Tensor
) -> Road:
    """Return solutions that the spread does not show.

    Where one entry's rounding outweighs all others together, the spread follows that entry and has
    its minima where the rounding put them; the misfit has one at the solution, and it is narrow.
    Where a ``known`` minimum (K,) fits already, the valley around it would only lead there again.
    """
    row, left, right = cells
    finer = sections(left, right, SEARCH.valley_points)
    unfit = misfit(curve.take(row), family, finer, SEARCH.shallow)
    unfit = _up_to(SEARCH.shallow, unfit)
    inner, left, right = local_minima(unfit, finer, depth=SEARCH.valley)
    row = row[inner]
    low, high = torch.minimum(left, right)[:, None], torch.maximum(left, right)[:, None]
    again = (row[:, None] == known_row) & (low <= known) & (known <= high) & (size <= SEARCH.fit)
    new = ~again.any(-1)
    row, left, right = row[new], left[new], right[new]
    levels = SEARCH.last_levels - SEARCH.first_levels
    return row, *descend(_misfits(curve.take(row), family, len(row)), left, right, levels)


def _up_to(limit: float, misfit: Tensor) -> Tensor:
    """Return the misfit as it counts for valleys.

    All that fit are alike, and none is above the limit.
    """
    return torch.where(misfit <= SEARCH.fit, 0.0, misfit.masked_fill(misfit > limit, math.inf))


def _levels(curve: Curve, families: tuple[Family, ...], t: Tensor) -> tuple[Tensor, ...]:
    """Return the misfit (R, T) of the first family and the spreads of all, from labels once.

    A misfit that no better scalar brings down may be infinite.
    """
    y, size = curve.labels(t)
    unfit = unfit_up_to(SEARCH.close, curve, families[0], t, y)
    return unfit, *(spread_of(family, y, size) for family in families)


def _refine(curve: Curve, family: Family, row: Tensor, left: Tensor, right: Tensor) -> Road:
    """Return the best point of each bracket (K,).

    Of the spread, or the misfit if it may reach zero.
    """
    every = curve.take(row)
    (_, scalar, _), (near, lowest, far) = zoom(
        lambda t: spread(every, family, t), left, right, SEARCH.first_levels - 1,
        many=_many(curve),
    )  # fmt: skip
    # A minimum at zero is V-shaped at every scale; one above zero is flat by now.
    sharp = (lowest < 0.9 * torch.maximum(near, far)) | (lowest == 0)
    scalar = scalar.clone()
    deepest = _misfits(curve.take(row[sharp]), family, int(sharp.sum()))
    scalar[sharp] = descend(deepest, left[sharp], right[sharp], SEARCH.last_levels)[0]
    return row, scalar, misfit(every, family, scalar[:, None])[:, 0]


def _needles(curve: Curve, family: Family, simpler: Family, cells: Brackets) -> Road:
    """Return solutions close to a simpler family.

    A mix with a very small second weight is the top two only within a sliver of ``t`` that falls
    between grid points. The simpler family has a broad minimum there, and it lies in the sliver.
    """
    row, left, right = _cut(curve, simpler, cells)
    every = curve.take(row)
    (_, scalar, _), (_, far, _) = zoom(
        lambda t: spread(every, simpler, t), left, right, 2 * SEARCH.first_levels,
        many=_many(curve),
    )  # fmt: skip
    rest = spread(every, family, scalar[:, None])[:, 0]
    close = (far < SEARCH.nearly) & (rest < far / 2)
    row, scalar = row[close], scalar[close]
    some = curve.take(row)
    scales = 2.0 ** torch.arange(-50, -3, dtype=scalar.dtype, device=scalar.device)
    steps = torch.cat([-scales.flip(0), scales.new_zeros(1), scales])
    points = scalar[:, None] * (1 + steps)
    best = misfit(some, family, points).argmin(-1, keepdim=True)
    ends = torch.cat([(best - 1).clamp_min(0), (best + 1).clamp_max(len(steps) - 1)], 1)
    left, right = points.gather(1, ends).unbind(1)
    return row, *descend(_misfits(some, family, len(row)), left, right, SEARCH.last_levels)


def _with_intervals(
    curve: Curve, family: Family, grid: Tensor, unfit: Tensor, minima: Minima
) -> Minima:
    """Return the minima with how far one may go from each that fits, and still fit.

    Different roads lead to one solution. Minima inside the interval of another are dropped, so
    that its ends are looked for only once.
    """
    order = minima.scalar.argsort()
    found = minima.take(order[minima.client[order].argsort(stable=True)])
    todo = found.fits.clone()
    while bool(todo.any()):
        # The first of each row that is left: rows come in order.
        place = todo.nonzero()[:, 0]
        row = found.client[place]
        first = place[F.pad(row[1:] != row[:-1], (1, 0), value=True)]
        ends = _ends(curve, family, grid, unfit, found.client[first], found.scalar[first])
        found.low[first], found.high[first] = ends.amin(0), ends.amax(0)
        todo[first] = False
        mine = found.client[:, None] == found.client[first]
        inside = (found.low[first] <= found.scalar[:, None]) & (
            found.scalar[:, None] <= found.high[first]
        )
        covered = todo & (mine & inside).any(-1)
        kept = ~covered
        found, todo = found.take(kept.nonzero()[:, 0]), todo[kept]
    return found


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
