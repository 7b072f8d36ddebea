"""Solve ``N x = right`` by preconditioned conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def conjugate_gradients(
    normal: Callable[[Tensor], Tensor],
    right: Tensor,
    inverse: Callable[[Tensor], Tensor],
    steps: int,
    tolerance: float = 0.0,
) -> Tensor:
    """Return an approximate solution (n,) of ``N x = right``, starting from zero.

    Args:
        normal: The product of N, symmetric and positive definite, with a vector (n,).
        right: The right side (n,).
        inverse: The product of an approximate inverse of N with a vector (n,).
        steps: How many steps to take at most.
        tolerance: The squared error ``rᵀ N⁻¹ r`` of the residual r at which to stop. If N is the
            inverse covariance of x, this is the squared distance in standard errors.
    """
    x, rest = torch.zeros_like(right), right
    pre = inverse(rest)
    direction, size = pre, rest @ pre
    for _ in range(steps):
        if not size > tolerance:
            break
        moved = normal(direction)
        step = size / (direction @ moved)
        x, rest = x + step * direction, rest - step * moved
        pre = inverse(rest)
        size, last = rest @ pre, size
        direction = pre + size / last * direction
    return x
