"""This module searches simple labels for the one whose update comes nearest, without derivatives.

Where ReLUs switch between steps, the update jumps with the label and Gauss–Newton stalls. A label
of a simple family has one open number, a smoothing or a mixing weight, so all of them can be tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor
from torch.func import vmap


@dataclass(frozen=True)
class SimpleSearch:
    """These settings try the labels of simple families, coarse to fine."""

    points: int = 9  # labels on the line between two corners, their ends among them
    mixed: int = 4  # classes of which every pair is tried, those that an update raises first
    kept: int = 4  # lines that are looked at again, those nearest to the update
    levels: int = 5  # times that a line is cut around its best point
    at_once: int = 16  # clients that are run together


SIMPLE = SimpleSearch()
Residual = Callable[[Tensor], Tensor]  # from a label (C,) to how far its update is off (M,)


def nearest_simple(residual: Residual, start: Tensor) -> list[Tensor]:
    """Return smoothed and mixed labels (C,) that come near an update, the nearest first.

    Args:
        residual: how far a run on a label is from the update, in units of its error.
        start: what one step would mean; its largest entries are the classes that may be mixed.
    """
    ends = _lines(start)
    part = torch.linspace(0, 1, SIMPLE.points, dtype=start.dtype, device=start.device)
    left, right = torch.zeros(len(ends)).to(start), torch.ones(len(ends)).to(start)
    for _ in range(SIMPLE.levels):
        where = torch.lerp(left[:, None], right[:, None], part)
        labels = torch.lerp(ends[:, None, 0], ends[:, None, 1], where[..., None])
        far = _sizes(residual, labels.flatten(0, 1)).reshape(where.shape)
        lowest, at = far.min(1)
        keep = lowest.argsort()[: SIMPLE.kept]
        ends, where, at, labels = ends[keep], where[keep], at[keep, None], labels[keep]
        left = where.gather(1, (at - 1).clamp_min(0))[:, 0]
        right = where.gather(1, (at + 1).clamp_max(SIMPLE.points - 1))[:, 0]
    best = labels.gather(1, at[..., None].expand(-1, 1, labels.shape[-1]))[:, 0]
    return list(best)


def _lines(start: Tensor) -> Tensor:
    """Return both ends (N, 2, C) of the lines of smoothed labels and of mixes of likely classes."""
    corners = torch.eye(len(start), dtype=start.dtype, device=start.device)
    flat = torch.full_like(corners, 1 / len(start))
    smoothed = torch.stack([corners, flat], 1)
    likely = start.argsort(descending=True)[: SIMPLE.mixed].tolist()
    pairs = [torch.stack([corners[i], corners[j]]) for i, j in combinations(likely, 2)]
    return torch.cat([smoothed, torch.stack(pairs)]) if pairs else smoothed


def _sizes(residual: Residual, labels: Tensor) -> Tensor:
    """Return the length (N,) of the residual of every label (N, C)."""
    parts = [vmap(residual)(some).norm(dim=1) for some in torch.split(labels, SIMPLE.at_once)]
    return torch.cat(parts).nan_to_num(torch.inf)
