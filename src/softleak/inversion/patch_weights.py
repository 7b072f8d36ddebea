"""This module weighs the equations of patches by the rounding of the sums that made them.

A client adds ``Σ_i Δ_ij x_ik`` in float32, and each addition is rounded relative to the sum so
far. Entries whose sums were large on their way are less precise than others, by a factor of ten
or more. The sums follow from a first estimate of X; whether they describe what the equations
leave over is seen in that, so that nothing is presumed of the order in which a client adds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.inversion.conjugate_gradients import conjugate_gradients
from softleak.inversion.state import TINY


@dataclass(frozen=True)
class WeightSettings:
    """These settings say how equations are weighed.

    Attributes:
        sums: the number of sums, evenly spaced over the patches, that stand for all.
        floor: the smallest variance of an entry, in units of the mean of its row.
        steps: the largest number of steps of the weighted least squares.
        converged: the squared error of these, per unknown, in standard errors.
        columns: the number of columns whose variance stands for that of all.
        spare: the number of equations beyond the unknowns that show how large errors are.
    """

    sums: int = 16
    floor: float = 0.03
    steps: int = 40
    converged: float = 1e-4
    columns: int = 32
    spare: int = 8


WEIGHT_SETTINGS = WeightSettings()


@dataclass(frozen=True, eq=False)
class Weighed:
    """This is the least-squares solution of ``U z = b``.

    Attributes:
        seen: (r, K) the solution z.
        variance: (r,) of an entry in each row of z, as a mean over the columns.
        residual: what the equations leave, in units of their expected error.
    """

    seen: Tensor
    variance: Tensor
    residual: float


def unweighed(U: Tensor, b: Tensor) -> Weighed:
    """Solve ``U z = b``, U (d, r) with orthonormal columns, all errors of b (d, K) alike."""
    seen = U.T @ b
    spare = len(U) - U.shape[1]
    left = float((b - U @ seen).square().sum()) / max(spare * b.shape[1], 1)
    residual = left**0.5 if spare else 1.0
    # Rounding is only bounded beforehand; what the equations leave shows how large it really was.
    scale = residual if spare > 1 else 1.0
    return Weighed(seen, U.new_full((U.shape[1],), scale**2), residual)


def weighed(U: Tensor, b: Tensor, running: Tensor) -> Weighed:
    """Solve ``U z = b`` again, each entry of b weighed by the variance that describes it.

    Args:
        U: (d, r) with orthonormal columns.
        b: (d, K) in units of its rows' expected errors.
        running: (d, K) the mean square of the sums behind each entry of b, in any unit.
    """
    first = unweighed(U, b)
    if len(U) - U.shape[1] < WEIGHT_SETTINGS.spare:
        return first
    rest = b - U @ first.seen
    shown = (1 - U.square().sum(1, keepdim=True)).clamp_min(1 / len(U))
    by_row = (rest.square().mean(1, keepdim=True) / shown).expand_as(rest)
    by_sum = running + WEIGHT_SETTINGS.floor * running.mean(1, keepdim=True)
    fits = [_fitted(U, b, first, variance + TINY) for variance in (by_row, by_sum)]
    return max(fits, key=lambda fit: fit[0])[1]


def _fitted(U: Tensor, b: Tensor, first: Weighed, variance: Tensor) -> tuple[float, Weighed]:
    """Return the solution under a variance (d, K) of b, and the log-likelihood of what it leaves.

    The likelihood is that of an entry, restricted to what no z can explain.
    """
    weight = variance.mean() / variance
    z = first.seen + _solved(U, weight, U.T @ (weight * (b - U @ first.seen)))
    spare = len(U) - U.shape[1]
    left = float((weight * (b - U @ z).square()).sum()) / (spare * b.shape[1])
    inverse, volume = _inverses(U, weight)
    likelihood = (float(weight.log().mean()) * len(U) - volume - spare * math.log(left)) / 2
    return likelihood, Weighed(z, left * inverse, first.residual)


def running_sums(delta: Tensor, X: Tensor) -> Tensor:
    """Return the mean square (d, K) of the sums on the way to ``ΔᵀX``, from first patch to last."""
    step = -(-len(delta) // WEIGHT_SETTINGS.sums)
    total = squares = X.new_zeros(delta.shape[1], X.shape[1])
    pairs = zip(torch.split(delta, step), torch.split(X, step), strict=True)
    for part, patches in pairs:
        total = total + part.T @ patches
        squares = squares + total.square()
    return squares


def _solved(U: Tensor, weight: Tensor, right: Tensor) -> Tensor:
    """Solve ``Uᵀ (w ∘ (U z)) = right`` for z (r, K)."""
    size = right.shape
    diagonal = (U.square().T @ weight).flatten()
    tolerance = WEIGHT_SETTINGS.converged * right.numel()
    found = conjugate_gradients(
        lambda z: (U.T @ (weight * (U @ z.view(size)))).flatten(), right.flatten(),
        lambda z: z / diagonal, WEIGHT_SETTINGS.steps, tolerance,
    )  # fmt: skip
    return found.view(size)


def _inverses(U: Tensor, weight: Tensor) -> tuple[Tensor, float]:
    """Return the diagonal (r,) and the log of 1/determinant of ``(Uᵀ w_k U)⁻¹``, means over k."""
    chosen = weight.T[:: -(-weight.shape[1] // WEIGHT_SETTINGS.columns)]
    factors = [torch.linalg.cholesky(U.T @ (w[:, None] * U)) for w in chosen]
    diagonals = [torch.cholesky_inverse(factor).diagonal() for factor in factors]
    volumes = [2 * factor.diagonal().log().sum() for factor in factors]
    return torch.stack(diagonals).mean(0), float(torch.stack(volumes).mean())
