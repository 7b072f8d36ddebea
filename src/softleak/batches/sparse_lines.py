"""This module finds units that were on for one sample only: their rows of ``R`` are parallel.

Where the samples of a batch are alike, most units are on for all or for none, and hyperplanes hold
few of the points. The rows of a unit that one sample alone switched on are then all multiples of
one vector ``c_i``, and exact parallels do not happen by chance. With ``c_i`` of every sample, the
sparse vectors are the dual basis; with some of them, the others are orthogonal to these.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.factors import SMALLEST_NORMAL


@dataclass(frozen=True)
class LineSettings:
    """These are the settings of the search for parallel rows.

    Attributes:
        errors: two rows are parallel if so many standard errors explain the angle.
        fewest: rows on one line, at least.
        most_rows: rows that are compared pairwise, at most; those of the smallest relative error.
        blunt: rows whose direction is less certain than this are left out.
    """

    errors: float = 6.0
    fewest: int = 3
    most_rows: int = 4096
    blunt: float = 1e-3


LINES = LineSettings()


def lone_lines(R: Tensor, errors: Tensor) -> Tensor:
    """Return unit vectors (K, B), K ≤ B, along which several rows of ``R`` (m, B) lie exactly.

    Args:
        R: the points, one row for each unit.
        errors: the standard error (m,) of each row's entries.
    """
    lengths = R.norm(dim=1).clamp_min(SMALLEST_NORMAL)
    blunt = errors * R.shape[1] ** 0.5 / lengths  # the error of each row's direction
    order = blunt.argsort()[: LINES.most_rows]
    order = order[blunt[order] < LINES.blunt]
    unit, blunt = R[order] / lengths[order, None], blunt[order]
    together = _parallel(unit, blunt)
    lines: list[Tensor] = []
    while len(unit) and len(lines) < R.shape[1]:
        count, at = together.sum(1).max(0)
        if int(count) < LINES.fewest:
            break
        members = together[at]
        signs = torch.sign(unit[members] @ unit[at])
        weights = signs / blunt[members].square()
        line = weights @ unit[members]
        lines.append(line / line.norm())
        together = together & ~members & ~members[:, None]
    return torch.stack(lines) if lines else R.new_zeros(0, R.shape[1])


def line_duals(lines: Tensor) -> Tensor:
    """Return vectors (N, B) that are orthogonal to B − 1 of the unit vectors ``lines`` (K, B).

    They are the sparse vectors if each line is that of one sample: all B of them if K is B, that of
    the sample without a line if K is B − 1, and none if there are fewer lines.
    """
    count, size = lines.shape
    if count == size:
        return torch.as_tensor(torch.linalg.pinv(lines).T)
    return torch.as_tensor(torch.linalg.svd(lines)[2][count:]) if count == size - 1 else lines[:0]


def _parallel(unit: Tensor, blunt: Tensor) -> Tensor:
    """Return which pairs of unit rows (n, B) are parallel, but for their errors (n,)."""
    cosine = (unit @ unit.T).clamp(-1, 1)
    angle = (1 - cosine.square()).clamp_min(0).sqrt()
    allowed = (blunt.square()[:, None] + blunt.square()).sqrt()
    return angle <= LINES.errors * allowed + 1e-7  # 1e-7 is what float64 leaves of 1 − cos²
