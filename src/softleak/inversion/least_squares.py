"""A weighted least-squares problem by its normal equations, with the error bar of every unknown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.inversion.state import TINY

SINGULAR = 1e-13  # a scaled pivot this small belongs to a direction no row sees
LIFTS = (0.0, 1e-15, SINGULAR, 1e-11, 1e-9, 1e-6)  # added to the scaled diagonal until it factors
DRAWS = 64  # of the solution's errors: their spread is known to a tenth
STEPS = 6  # towards the solution of the rows themselves, at most
SMALL = 1e-3  # a step that is so much less than the error


@dataclass(frozen=True, eq=False)
class Solution:
    """The unknowns and their standard errors (n,); the smallest that fit if not determined."""

    value: Tensor
    error: Tensor
    condition: float
    determined: bool


@dataclass(frozen=True, eq=False)
class Factored:
    """A normal matrix (n, n), scaled to a unit diagonal and factored."""

    normal: Tensor
    scale: Tensor
    factor: Tensor
    lifted: Tensor  # (n,) what was added to the matrix's diagonal

    @classmethod
    def of(cls, normal: Tensor) -> Factored:
        """Factor, lifting the diagonal as far as need be."""
        scale = normal.diagonal().clamp_min(TINY).rsqrt()
        scaled = (normal * scale).mul_(scale[:, None])
        total = 0.0
        for lift in LIFTS:
            scaled.diagonal().add_(lift)
            total += lift
            factor, failed = torch.linalg.cholesky_ex(scaled)
            if not failed:
                break
        return cls(normal, scale, factor, total / scale.square())

    @property
    def smallest(self) -> float:
        """The smallest scaled pivot."""
        return float(self.factor.diagonal().min() ** 2)

    def inverse(self, right: Tensor) -> Tensor:
        """``N⁻¹ right`` (n,)."""
        return self.step(right) * self.scale

    def step(self, slope: Tensor) -> Tensor:
        """``N⁻¹ slope`` (n,), in units of the scale."""
        return solved(self.factor, (slope * self.scale)[:, None])[:, 0]

    def solve(self, slope: Callable[[Tensor], Tensor], start: Tensor) -> Solution:
        """The root of ``slope(x) = Aᵀ(b − A x)``, its derivative being the matrix, or nearly.

        The slope is computed from the rows themselves, where it does not lose half the digits.
        """
        x = start
        for _ in range(STEPS):
            step = self.step(slope(x))
            x = x + step * self.scale
            if float(step.abs().max()) < SMALL:
                break
        pivots = self.factor.diagonal()
        return Solution(
            x,
            drawn(self.factor).square().mean(1).sqrt() * self.scale,
            float((pivots.max() / pivots.min()) ** 2),
            self.smallest > SINGULAR,
        )


def solved(factor: Tensor, right: Tensor) -> Tensor:
    """``(L Lᵀ)⁻¹ right`` (n, R); for few right sides ``cholesky_solve`` is many times slower."""
    half = torch.linalg.solve_triangular(factor, right, upper=False)
    whole: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return whole


def drawn(factor: Tensor) -> Tensor:
    """(n, DRAWS) draws with the covariance ``(L Lᵀ)⁻¹``."""
    noise = noise_like((len(factor), DRAWS), factor)
    draws: Tensor = torch.linalg.solve_triangular(factor.mT, noise, upper=True)
    return draws


def noise_like(shape: tuple[int, int], like: Tensor) -> Tensor:
    """Standard normal numbers, the same for everyone."""
    generator = torch.Generator(like.device).manual_seed(0)
    return torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)


def descend(
    normal: Callable[[Tensor], Tensor],
    right: Tensor,
    near: Callable[[Tensor], Tensor],
    steps: int,
    enough: float = 0.0,
) -> Tensor:
    """A rough solution of ``normal x = right`` (n,): conjugate gradients, ``near`` an inverse.

    They stop early, or where the square of what is missing, in errors, is ``enough``.
    """
    x, rest = torch.zeros_like(right), right
    pre = near(rest)
    direction, size = pre, rest @ pre
    for _ in range(steps):
        if not size > enough:
            break
        moved = normal(direction)
        step = size / (direction @ moved)
        x, rest = x + step * direction, rest - step * moved
        pre = near(rest)
        size, last = rest @ pre, size
        direction = pre + size / last * direction
    return x
