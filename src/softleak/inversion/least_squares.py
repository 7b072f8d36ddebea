"""A weighted least-squares problem by its normal equations, with the error bar of every unknown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

RIDGE = 1e-15  # of the scaled diagonal: the smallest that float64 notices
SINGULAR = 1e-13  # a scaled pivot this small belongs to a direction no row sees


@dataclass(frozen=True, eq=False)
class Solution:
    """The unknowns and their standard errors (n,); the minimum-norm ones if not ``determined``."""

    value: Tensor
    error: Tensor
    condition: float
    determined: bool


def solve_normal(
    normal: Tensor, right: Tensor, residual: Callable[[Tensor], Tensor], refinements: int = 2
) -> Solution:
    """Solve ``normal x = right`` (n, n), refined by ``residual(x) = right − normal x``.

    The residual is computed from the rows themselves, where it does not lose half the digits.
    """
    scale = normal.diagonal().clamp_min(1e-300).sqrt()
    scaled = normal / scale[:, None] / scale
    factor, determined = _cholesky(scaled)
    x = torch.cholesky_solve((right / scale)[:, None], factor)[:, 0] / scale
    for _ in range(refinements):
        step = torch.cholesky_solve((residual(x) / scale)[:, None], factor)[:, 0] / scale
        x = x + step
    # Single precision will do for error bars, and takes half the time.
    inverse = torch.cholesky_inverse(factor.float())
    error = inverse.diagonal().double().clamp_min(0).sqrt() / scale
    pivots = factor.diagonal()
    return Solution(x, error, float((pivots.max() / pivots.min()) ** 2), determined)


def _cholesky(scaled: Tensor) -> tuple[Tensor, bool]:
    """The factor, of a slightly lifted matrix if need be, and whether it had to be lifted much."""
    for ridge in (RIDGE, SINGULAR, 1e-11, 1e-9):
        lifted = scaled.clone()
        lifted.diagonal().add_(ridge)
        factor, failed = torch.linalg.cholesky_ex(lifted)
        if not failed and bool(factor.isfinite().all()):
            return factor, bool(factor.diagonal().min() ** 2 > SINGULAR)
    lifted.diagonal().add_(1e-6)
    return torch.linalg.cholesky(lifted), False
