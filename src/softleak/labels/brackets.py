"""This module narrows brackets of scalars: local minima, zooms, and the edges of what fits."""

from __future__ import annotations

import math
from collections.abc import Callable

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
    # Strictly lower than on one side only, and by more than noise: a plateau yields one point.
    lowest = (loss < padded[:, :-2] * (1 - SEARCH.float64_noise)) & (
        loss * (1 - SEARCH.float64_noise) <= padded[:, 2:]
    )
    lowest &= torch.maximum(padded[:, :-2], padded[:, 2:]) > loss * (1 + depth)
    row, at = lowest.nonzero(as_tuple=True)
    last = grid.shape[1] - 1
    return row, grid[row, (at - reach).clamp_min(0)], grid[row, (at + reach).clamp_max(last)]


def sections(left: Tensor, right: Tensor, points: int) -> Tensor:
    """Return brackets (K,) cut into as many ``points`` (K, points), their ends among them."""
    steps = torch.linspace(0, 1, points, dtype=left.dtype, device=left.device)
    return torch.lerp(left[:, None], right[:, None], steps)


def zoom(
    loss: Callable[[Tensor], Tensor], left: Tensor, right: Tensor, levels: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Cut brackets (K,) into sections around their lowest point, again and again."""
    middle = left
    for _ in range(levels):
        points = sections(left, right, SEARCH.section)
        best = loss(points).argmin(-1, keepdim=True)
        around = torch.cat(
            [(best - 1).clamp_min(0), best, (best + 1).clamp_max(SEARCH.section - 1)], 1
        )
        left, middle, right = points.gather(1, around).unbind(1)
    return left, middle, right


def edge_of(fits: Callable[[Tensor], Tensor], good: Tensor, bad: Tensor) -> Tensor:
    """Return the last point that fits on the way from ``good`` to ``bad`` (K,)."""
    for _ in range(SEARCH.edge_levels):
        points = sections(good, bad, SEARCH.section)
        inside = fits(points).to(torch.int8).cummin(-1).values.sum(-1, keepdim=True)
        inside = inside.clamp(1, SEARCH.section - 1)
        good, bad = points.gather(1, torch.cat([inside - 1, inside], 1)).unbind(1)
    return good
