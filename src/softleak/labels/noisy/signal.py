"""The rank-one part of a noisy head gradient: ``u``, ``a = σ W v``, and how uncertain both are.

Features have a usual direction, which counts in full; the rest counts as far as it stands out of
the noise. With little noise this is the leading singular pair, in much noise the usual direction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.head import Head
from softleak.labels.noisy.features import Typical

STEPS = 4  # of the part that stands out, from the pair it gives
TINY = 1e-300
DRAWS = 4096  # of the direction u
ACCEPTED = 16  # one in so many has to lie on the sphere


@dataclass(frozen=True, eq=False)
class Signal:
    """``u`` (C,) with its covariance (C, C), and ``σ v`` (I,) with the variance of its entries.

    ``a = σ W v`` (C,) has noise ``a_root`` (C, C) times independent normal variables.
    """

    u: Tensor
    u_covariance: Tensor
    x: Tensor
    x_variance: float
    a: Tensor
    a_root: Tensor
    noise: float
    along: float  # of σ v, in the usual direction of features
    mean: Tensor  # (C,) G in that direction
    gram: Tensor  # (C, C) the density of u is exp(uᵀ gram u / 2s²)
    response: Tensor  # (C, C) a = response u

    @property
    def known(self) -> float:
        """How much is known of ``u``: the square of its mean, one if all."""
        return float(self.u.square().sum())

    @property
    def sigma(self) -> float:
        """σ."""
        return float(self.x.norm())

    @classmethod
    def of(cls, head: Head, G: Tensor, noise: float, typical: Typical) -> Signal:
        """The signal in ``G`` (C, I), float64, that carries noise of this standard deviation."""
        usual = typical.direction
        centred = G - G.mean(0)
        mean = centred @ usual
        level = torch.outer(mean, mean)
        rest = centred @ centred.T - level
        part = 1.0
        for _ in range(STEPS):
            values, vectors = torch.linalg.eigh(level + part * rest)
            u = vectors[:, -1]
            across = max(
                _spike(u @ rest @ u, noise, *G.shape),
                typical.across**2 * max(float(u @ level @ u) - noise**2, 0.0),
            )
            part = across / max(across + G.shape[1] * noise**2, TINY)
        u, covariance = _direction(values, vectors, noise)
        u = u if float(u @ mean) > 0 else -u
        x = part * (u @ centred) + (1 - part) * (u @ mean) * usual
        W = head.W.double()
        flat = W @ usual
        spread = part * (W @ W.T) + (1 - part) * torch.outer(flat, flat)
        return cls(
            u, covariance, x, part * noise**2, W @ x, noise * _root(spread), noise,
            float(u @ mean), mean, level + part * rest,
            part * (W @ centred.T) + (1 - part) * torch.outer(flat, mean),
        )  # fmt: skip


def _spike(energy: Tensor, noise: float, classes: int, inputs: int) -> float:
    """The signal in the largest ``‖Gᵀu‖²``, zero if it does not stand out of the noise.

    A spike of energy q is seen as (q + I s²)(q + C s²)/q, and below √(I C) s² not at all.
    """
    wide, narrow = inputs * noise**2, (classes - 1) * noise**2
    half = (float(energy) - wide - narrow) / 2
    if half**2 <= wide * narrow or half <= 0:
        return 0.0
    return half + math.sqrt(half**2 - wide * narrow)


def _direction(values: Tensor, vectors: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """Mean and covariance of ``u``, whose density on the sphere is ``exp(uᵀ K u / 2s²)``.

    ``K`` has these eigenvalues and eigenvectors, of which the first is that of equal entries.
    """
    classes = len(values)
    spread = (noise**2 / (values[-1] - values[:-1]).clamp_min(TINY)).sqrt()
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(DRAWS, classes, generator=generator, dtype=torch.double).to(values)
    drawn[:, 0] = 0.0  # entries of u sum to zero
    side = drawn[:, :-1] * spread
    inside = 1 - side.square().sum(-1)
    if int((inside > 0).sum()) >= DRAWS // ACCEPTED:
        side, inside = side[inside > 0], inside[inside > 0]
        u = torch.cat([side, inside.sqrt()[:, None]], 1)
        weight = inside.rsqrt()
    else:  # hardly any signal: from anywhere on the sphere
        u = drawn / drawn.norm(dim=-1, keepdim=True)
        u = u * u[:, -1:].sign()
        weight = torch.softmax(-(u[:, :-1] / spread).square().sum(-1) / 2, 0)
    weight = (weight / weight.sum())[:, None]
    along = (weight * u)[:, -1].sum()
    second = (weight * u.square()).sum(0)
    second[-1] -= along.square()
    return along * vectors[:, -1], vectors @ torch.diag(second) @ vectors.T


def _root(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return torch.mul(vectors, values.clamp_min(0.0).sqrt())
