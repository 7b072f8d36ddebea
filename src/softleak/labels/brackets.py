"""This module narrows brackets of scalars: local minima, zooms, and the edges of what fits."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from softleak.labels.minima import SEARCH

Brackets = tuple[Tensor, Tensor, Tensor]  # row and both ends, (K,) each


def local_minima(loss: Tensor, grid: Tensor, reach: int = 1, depth: float = 0.0) -> Brackets:
    """Return row and ``reach``-th grid neighbours (K,) of the local minima of ``loss`` (R, T).

    The higher of the neighbouring values has to exceed a minimum by the part ``depth`` of it.
    """
    padded = F.pad(loss, (1, 1), value=math.inf)
    before, after = padded[:, :-2], padded[:, 2:]
    # Strictly lower than on one side only, and by more than noise: a plateau yields one point.
    lowest = loss < before * (1 - SEARCH.float64_noise)
    lowest &= loss * (1 - SEARCH.float64_noise) <= after
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


@lru_cache(maxsize=16)
def _even_steps(points: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return as many ``points`` from zero to one, which serve inside inference mode and outside."""
    with torch.inference_mode(False):
        return torch.linspace(0, 1, points, dtype=dtype, device=device)


@lru_cache(maxsize=4)
def _doubling_steps(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return parts of a bracket from zero to one, each about twice the one before."""
    with torch.inference_mode(False):
        bits = torch.linspace(-SEARCH.edge_bits, 0, SEARCH.section - 1, dtype=dtype)
        return F.pad(bits.exp2(), (1, 0)).to(device)


@lru_cache(maxsize=8)
def _ways(ways: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the ways (K,) from a place to others, as numbers to add to it."""
    with torch.inference_mode(False):
        return torch.tensor(ways, device=device)


@lru_cache(maxsize=4)
def _crossing_steps(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return parts of a bracket on both sides of a crossing, nearer and nearer to it."""
    with torch.inference_mode(False):
        near = torch.tensor([2.0**-3, 2.0**-6, 2.0**-9, 2.0**-12], dtype=dtype, device=device)
        return torch.cat([-near, near])


def zoom(
    loss: Callable[[Tensor], Tensor], left: Tensor, right: Tensor, levels: int, *, many: bool
) -> tuple[Tensor, Tensor]:
    """Cut brackets (K,) into sections around their lowest point, again and again.

    Return that point between its neighbours (3, K), and the loss at the three (3, K). With ``many``
    classes each level is taken in two steps of fewer points, since then points cost more than
    steps.
    """
    count, steps = (SEARCH.fewer, 2 * levels) if many else (SEARCH.section, levels)
    for _ in range(steps):
        points = sections(left, right, count)
        values = loss(points)
        around = _around(values.argmin(-1, keepdim=True), count)
        three = points.gather(1, around).T
        left, _, right = three
    return three, values.gather(1, around).T


def descend(
    loss: Callable[[Tensor, Tensor], Tensor], left: Tensor, right: Tensor, levels: int
) -> tuple[Tensor, Tensor]:
    """Return the lowest points (K,) of brackets (K,), and the loss there.

    Each is zoomed onto until it fits and falls no more.

    ``loss`` is given which of the brackets are meant (A,), and scalars (A, S). A misfit that cannot
    be brought down to what rounding explains takes all ``levels``.
    """
    lowest, least = left.clone(), torch.full_like(left, math.inf)
    open_ = torch.arange(len(left), device=left.device)
    before = least.clone()
    for _ in range(levels):
        if not len(open_):
            break
        points = sections(left, right, SEARCH.section)
        best, at = loss(open_, points).min(-1, keepdim=True)
        left, middle, right = points.gather(1, _around(at, SEARCH.section)).unbind(1)
        best = best[:, 0]
        lowest[open_], least[open_] = middle, best
        going = (best > SEARCH.fit) | (best < SEARCH.falling * before)
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
    steps = _doubling_steps(good.dtype, good.device).expand(len(good), -1)
    for _ in range(SEARCH.edge_levels):
        points = torch.lerp(good[:, None], bad[:, None], steps)
        values = loss(open_, points)
        inside = (values <= SEARCH.fit).to(torch.int8).cummin(-1).values.sum(-1, keepdim=True)
        ends = inside.clamp_(1, points.shape[1] - 1) + _ways((-1, 0), good.device)
        good, bad = points.gather(1, ends).unbind(1)
        edge[open_] = bad
        wide = (bad - good).abs() > SEARCH.edge_part * (bad - start[open_]).abs()
        if not bool(wide.any()):
            break
        open_, good, bad = open_[wide], good[wide], bad[wide]
        steps = _around_crossing(*values.gather(1, ends)[wide].unbind(1))
    return edge


def _around_crossing(below: Tensor, above: Tensor) -> Tensor:
    """Return parts of brackets (K, S), in order, many of them where a line crosses what fits."""
    at = ((SEARCH.fit - below) / (above - below)).nan_to_num(0.5, 0.5, 0.5)[:, None]
    whole = _even_steps(5, at.dtype, at.device).expand(len(at), -1)
    near = at + _crossing_steps(at.dtype, at.device)
    return torch.cat([near, whole], 1).clamp(0, 1).sort(-1).values
