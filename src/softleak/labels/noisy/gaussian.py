"""Linear algebra and fixed draws behind the posterior: Gaussian vectors that sum to zero."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class GaussianSettings:
    """The numerical limits of the Gaussian computations.

    Attributes:
        draws: the number of draws of the logits' noise, at least.
        floor: the variance that float32 leaves in any entry of a label.
        root_steps: fixed-point steps to the root on which evenly spread points rest.
        margin: the distance that points keep from the faces of the unit cube, where a normal
            variable would be infinite.
        ridge: the relative ridge that fixes a weight which the equations leave open.
        seed: the seed of the draws, so that equal shares give equal answers.
    """

    draws: int = 64
    floor: float = 1e-14
    root_steps: int = 40
    margin: float = 1e-6
    ridge: float = 1e-12
    seed: int = 0


GAUSSIAN = GaussianSettings()


def weights_given(A: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Solve ``wᵀ A = r + noise`` for the weights ``w``, with noise of unit variance.

    Args:
        A: (…, d, n) the directions.
        r: (…, n) the right-hand sides.

    Returns:
        The mean (…, d) of the weights, a lower triangular root (…, d, d) of their covariance, the
        squared misfit (…) at the mean, and the logarithm (…) of ``∫ exp(−(w − mean)²/2) dw``.
    """
    size = A.shape[-2]
    normal = A @ A.mT
    trace = normal.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    ridge = GAUSSIAN.ridge * trace + GAUSSIAN.floor
    covariance = torch.linalg.inv(normal + ridge * torch.eye(size).to(A))
    right = (A @ r[..., None])[..., 0]
    mean = (covariance @ right[..., None])[..., 0]
    root = torch.linalg.cholesky((covariance + covariance.mT) / 2) if size else covariance
    volume = root.diagonal(dim1=-2, dim2=-1).log().sum(-1) + size / 2 * math.log(2 * math.pi)
    misfit = (r - (A.mT @ mean[..., None])[..., 0]).square().sum(-1)
    return mean, root, misfit, volume


def without_last_weight(mean: Tensor, root: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what ``weights_given`` does for the other weights, if the last one is zero.

    Args:
        mean: (…, d) the means of the weights.
        root: (…, d, d) a root of their covariance.

    Returns:
        The mean (…, d − 1), a lower triangular root (…, d − 1, d − 1), what is added to the squared
        misfit (…), and the logarithm (…) of the integral over the others.
    """
    covariance = root @ root.mT
    variance = covariance[..., -1, -1].clamp_min(GAUSSIAN.floor**2)
    slope = covariance[..., :-1, -1] / variance[..., None]
    inner = covariance[..., :-1, :-1] - slope[..., None] * covariance[..., -1:, :-1]
    size = inner.shape[-1]
    # Rounding may leave a determined weight without any variance.
    least = GAUSSIAN.ridge * covariance.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    kept = torch.linalg.cholesky(inner + least * torch.eye(size).to(root)) if size else inner
    volume = kept.diagonal(dim1=-2, dim2=-1).log().sum(-1) + size / 2 * math.log(2 * math.pi)
    last = mean[..., -1]
    return mean[..., :-1] - slope * last[..., None], kept, last.square() / variance, volume


def sum_zero_part(rows: Tensor) -> Tensor:
    """Return the coordinates (…, C − 1) of rows (…, C) in a basis of the vectors that sum to zero.

    The basis is orthonormal: it is all but the first column of the reflection that swaps the first
    axis with the direction of equal entries. A reflection costs C operations a row, a product with
    a basis C².
    """
    length = math.sqrt(rows.shape[-1])
    along = (rows[..., :1] * length - rows.sum(-1, keepdim=True)) / (length * (length - 1))
    return rows[..., 1:] + along


def sum_zero_covariance(spread: Tensor) -> Tensor:
    """Return covariances (…, C, C) in the basis of ``sum_zero_part``, as (…, C − 1, C − 1)."""
    return sum_zero_part(sum_zero_part(spread).mT)


def normal_draws(classes: int) -> Tensor:
    """Return normal draws (M, C) whose sample mean is zero and covariance is one, exactly.

    They are the same in every run.
    """
    half = max(GAUSSIAN.draws // 2, classes)
    generator = torch.Generator().manual_seed(GAUSSIAN.seed)
    drawn = torch.randn(half, classes, generator=generator, dtype=torch.double)
    exact = torch.linalg.qr(drawn).Q * math.sqrt(half)
    return torch.cat([exact, -exact])


def even_points(count: int, size: int) -> Tensor:
    """Return points (K, d) that fill the unit cube evenly, the same in every run.

    They are multiples of powers of ``1/x`` modulo one, where ``x^(d + 1) = x + 1`` generalises the
    golden ratio.
    """
    ratio = 2.0
    for _ in range(GAUSSIAN.root_steps):
        ratio = (1 + ratio) ** (1 / (size + 1))
    steps = ratio ** -torch.arange(1, size + 1, dtype=torch.double)
    turns = torch.arange(count, dtype=torch.double)[:, None] * steps
    return (0.5 + turns).remainder(1.0).clamp(GAUSSIAN.margin, 1 - GAUSSIAN.margin)
