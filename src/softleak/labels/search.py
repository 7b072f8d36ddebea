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
from softleak.labels.brackets import Brackets, edge_of, local_minima, sections, zoom
from softleak.labels.curve import (
    ENTRIES_AT_ONCE,
    Curve,
    Interval,
    distance,
    misfit,
    root_mean_square,
    spread,
    spread_of,
)
from softleak.labels.minima import SEARCH, Minima


def search(curve: Curve, family: Family, where: Interval) -> Minima:
    """Return all minima of the spread on each interval, refined, with what fits around them."""
    client = where.client
    parts = [_search(curve, family, client[rows], grid) for rows, grid in where.grids()]
    return Minima(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _search(curve: Curve, family: Family, client: Tensor, grid: Tensor) -> tuple[Tensor, ...]:
    """Return the columns of ``Minima`` of curves searched on one ``grid`` (R, T)."""
    mine, simpler = curve.take(client), simpler_of(family)
    kinds = (family,) if simpler is None else (family, simpler)
    unfit, far, *near = _in_chunks(lambda c, t: _levels(c, kinds, t), mine, grid)
    cells = local_minima(
        far.masked_fill(unfit <= SEARCH.fit, 0.0), grid
    )  # what fits is a plateau, not noise
    found = [_refine(mine, family, *_cut(mine, family, cells))]
    found.append(
        _valleys(mine, family, local_minima(_up_to(SEARCH.close, unfit), grid, 2, SEARCH.slope))
    )
    if simpler is not None:
        found.append(_needles(mine, family, simpler, local_minima(near[0], grid)))
    row, scalar = (torch.cat(parts) for parts in zip(*found, strict=True))
    size = misfit(mine.take(row), family, scalar[:, None])[:, 0]
    low, high = _fitting(mine, family, grid, unfit > SEARCH.fit, row, scalar, size <= SEARCH.fit)
    alone = _distinct(Minima(row, scalar, low, high, size))
    settled = _settled(mine, family, alone)
    return (
        client[settled.client], settled.scalar, settled.low, settled.high, settled.misfit,
    )  # fmt: skip


def _settled(curve: Curve, family: Family, minima: Minima) -> Minima:
    """Return those that fit at the best point of their interval: a road may end at any of it."""
    wide = minima.fits.nonzero()[:, 0]
    some, ends = curve.take(minima.client[wide]), minima.take(wide)
    scalar, size = minima.scalar.clone(), minima.misfit.clone()
    scalar[wide] = zoom(
        lambda t: misfit(some, family, t), ends.low, ends.high, SEARCH.first_levels
    )[1]
    size[wide] = misfit(some, family, scalar[wide, None])[:, 0]
    return replace(minima, scalar=scalar, misfit=size)


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


def _valleys(curve: Curve, family: Family, cells: Brackets) -> tuple[Tensor, Tensor]:
    """Return solutions that the spread does not show: row and scalar (K,).

    Where one entry's rounding outweighs all others together, the spread follows that entry and has
    its minima where the rounding put them; the misfit has one at the solution, and it is narrow.
    """
    row, left, right = cells
    finer = sections(left, right, SEARCH.valley_points)
    (unfit,) = _in_chunks(lambda c, t: (misfit(c, family, t),), curve.take(row), finer)
    unfit = _up_to(SEARCH.shallow, unfit)
    inner, left, right = local_minima(unfit, finer, depth=SEARCH.valley)
    row = row[inner]
    every = curve.take(row)
    return row, zoom(
        lambda t: misfit(every, family, t), left, right, SEARCH.last_levels - SEARCH.first_levels
    )[1]


def _up_to(limit: float, misfit: Tensor) -> Tensor:
    """Return the misfit as it counts for valleys.

    All that fit are alike, and none is above the limit.
    """
    return torch.where(misfit <= SEARCH.fit, 0.0, misfit.masked_fill(misfit > limit, math.inf))


def _levels(curve: Curve, families: tuple[Family, ...], t: Tensor) -> tuple[Tensor, ...]:
    """Return the misfit (R, T) of the first family and the spreads of all, from labels once."""
    y, size = curve.labels(t)
    unfit = root_mean_square(*distance(families[0], y, curve.errors(t, y)))
    return unfit, *(spread_of(family, y, size) for family in families)


def _in_chunks(
    values: Callable[[Curve, Tensor], tuple[Tensor, ...]], curve: Curve, grid: Tensor
) -> tuple[Tensor, ...]:
    """Return ``values`` (R, T) on the grid, in pieces that fit in memory."""
    classes = curve.labels(grid[:, :1])[0].shape[-1]
    rows = max(ENTRIES_AT_ONCE // (grid.shape[1] * classes), 1)
    if rows >= len(grid):
        return values(curve, grid)
    parts = torch.split(torch.arange(len(grid), device=grid.device), rows)
    found = [values(curve.take(part), grid[part]) for part in parts]
    return tuple(torch.cat(column) for column in zip(*found, strict=True))


def _refine(
    curve: Curve, family: Family, row: Tensor, left: Tensor, right: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the best point of each bracket (K,).

    Of the spread, or the misfit if it may reach zero.
    """
    every = curve.take(row)
    near, scalar, far = zoom(
        lambda t: spread(every, family, t), left, right, SEARCH.first_levels - 1
    )
    lowest, *ends = spread(every, family, torch.stack([scalar, near, far], 1)).T
    # A minimum at zero is V-shaped at every scale; one above zero is flat by now.
    sharp = (lowest < 0.9 * torch.maximum(*ends)) | (lowest == 0)
    some = curve.take(row[sharp])
    scalar = scalar.clone()
    scalar[sharp] = zoom(
        lambda t: misfit(some, family, t), left[sharp], right[sharp], SEARCH.last_levels
    )[1]
    return row, scalar


def _needles(
    curve: Curve, family: Family, simpler: Family, cells: Brackets
) -> tuple[Tensor, Tensor]:
    """Return solutions close to a simpler family: row and scalar (K,).

    A mix with a very small second weight is the top two only within a sliver of ``t`` that falls
    between grid points. The simpler family has a broad minimum there, and it lies in the sliver.
    """
    row, left, right = _cut(curve, simpler, cells)
    every = curve.take(row)
    scalar = zoom(lambda t: spread(every, simpler, t), left, right, 2 * SEARCH.first_levels)[1]
    far, rest = (spread(every, kind, scalar[:, None])[:, 0] for kind in (simpler, family))
    close = (far < SEARCH.nearly) & (rest < far / 2)
    row, scalar = row[close], scalar[close]
    some = curve.take(row)
    scales = 2.0 ** torch.arange(-50, -3, dtype=scalar.dtype, device=scalar.device)
    steps = torch.cat([-scales.flip(0), scales.new_zeros(1), scales])
    points = scalar[:, None] * (1 + steps)
    best = misfit(some, family, points).argmin(-1, keepdim=True)
    ends = torch.cat([(best - 1).clamp_min(0), (best + 1).clamp_max(len(steps) - 1)], 1)
    left, right = points.gather(1, ends).unbind(1)
    return row, zoom(lambda t: misfit(some, family, t), left, right, SEARCH.last_levels)[1]


def _fitting(
    curve: Curve, family: Family, grid: Tensor, unfit: Tensor,
    row: Tensor, scalar: Tensor, good: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return how far one may go from each good minimum (K,), down and up, and still fit."""
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
    edge = edge_of(lambda t: misfit(both, family, t) <= SEARCH.fit, near, far)
    edge = torch.where((beyond < 0) | (beyond == len(index)), near, edge)
    ends = edge.view(2, -1)
    low[good], high[good] = ends.amin(0), ends.amax(0)
    return low, high
