"""This module factors a layer's gradient ``G = Dᵀ X`` of a batch: its rank, space and noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.factors import OWN, RANK, SMALLEST_NORMAL

SKETCH = 24  # columns of a first random sketch; it doubles until it holds the whole space


@dataclass(frozen=True, eq=False)
class GradientSpace:
    """This holds ``G = R Vᵀ`` up to rounding, with ``R`` (m, B) and orthonormal ``V`` (n, B).

    Attributes:
        R: the coordinates of each row of ``G``.
        V: the basis of its row space.
        errors: the standard error (m,) of an entry of each row, from what ``R Vᵀ`` leaves of it.
    """

    R: Tensor
    V: Tensor
    errors: Tensor

    @property
    def rank(self) -> int:
        """Return the number of samples behind the gradient, at least."""
        return self.R.shape[1]

    @classmethod
    def of(cls, G: Tensor, relative: float, noise: float) -> GradientSpace:
        """Factor a gradient (m, n).

        Args:
            G: the gradient, in float64.
            relative: the rounding of its entries, relative to their size.
            noise: the standard deviation of whatever else is on each entry.
        """
        V = _row_space(G, relative, noise)
        R = G @ V
        freedom = max(G.shape[1] - V.shape[1], 1)
        left = (G - R @ V.T).square().sum(1).div(freedom).sqrt()
        floor = max(relative, OWN) * G.square().mean(1).sqrt()
        return cls(R, V, left.maximum(floor).clamp_min(max(noise, SMALLEST_NORMAL)))


def _row_space(G: Tensor, relative: float, noise: float) -> Tensor:
    """Return an orthonormal basis (n, B) of the rows of ``G``, but for rounding."""
    generator = torch.Generator().manual_seed(0)
    columns = SKETCH
    while True:
        columns = min(columns, *G.shape)
        drawn = torch.randn(G.shape[1], columns, generator=generator, dtype=torch.double)
        Q = torch.linalg.qr(G @ drawn.to(G))[0]
        _, values, rows = torch.linalg.svd(Q.T @ G, full_matrices=False)
        largest = float(values[0]) if len(values) else 0.0
        spread = noise * (math.sqrt(G.shape[0]) + math.sqrt(G.shape[1]))
        least = RANK.second_value * max(relative, OWN) * largest
        rank = int((values > math.hypot(least, 2 * spread)).sum())
        if rank < columns or columns == min(G.shape):
            return torch.as_tensor(rows[:rank].T)
        columns *= 2
