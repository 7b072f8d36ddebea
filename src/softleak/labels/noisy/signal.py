"""The rank-one part of a noisy head gradient: ``u``, ``a = σ W v``, and how uncertain both are.

Features have a usual direction, in which the gradient counts in full. Across that direction it
counts as far as it stands out of the noise. With little noise the result is the leading singular
pair; with much noise it is the gradient along the usual direction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.head import Head
from softleak.labels.noisy.features import Typical


@dataclass(frozen=True)
class SignalSettings:
    """How the signal is separated from the noise.

    Attributes:
        rounds: fixed-point steps for the part of the gradient that stands out of the noise.
        draws: draws of the direction ``u``, from which its mean and covariance are estimated.
        accepted: one draw in this many has to lie on the sphere; with fewer, draws are taken from
            the whole sphere and weighted instead.
        seed: the seed of the draws, so that equal shares give equal answers.
        smallest: the smallest divisor.
    """

    rounds: int = 4
    draws: int = 4096
    accepted: int = 16
    seed: int = 0
    smallest: float = 1e-300


SIGNAL = SignalSettings()


@dataclass(frozen=True, eq=False)
class Signal:
    """What noise leaves of the factors of ``G = σ u vᵀ``.

    Attributes:
        u: (C,) the mean of the unit vector ``u``; it is shorter than one if ``u`` is uncertain.
        u_covariance: (C, C) the covariance of ``u``.
        x: (I,) the estimate of ``σ v``.
        x_variance: the variance of each entry of ``x``.
        a: (C,) the estimate of ``a = σ W v``.
        a_root: (C, C) a root of its covariance: its noise is ``a_root`` times normal variables.
        noise: the standard deviation s of the noise on an entry of the gradient.
        along: the length of ``σ v`` in the usual direction of features.
        mean: (C,) the gradient ``G`` in that direction.
        gram: (C, C) the matrix K; the density of ``u`` is proportional to ``exp(uᵀ K u / 2s²)``.
        response: (C, C) the matrix for which ``a = response u``.
    """

    u: Tensor
    u_covariance: Tensor
    x: Tensor
    x_variance: float
    a: Tensor
    a_root: Tensor
    noise: float
    along: float
    mean: Tensor
    gram: Tensor
    response: Tensor

    @property
    def known(self) -> float:
        """How well ``u`` is known: the squared length of its mean, one if it is certain."""
        return float(self.u.square().sum())

    @property
    def sigma(self) -> float:
        """Return the singular value σ."""
        return float(self.x.norm())

    @classmethod
    def of(cls, head: Head, G: Tensor, noise: float, typical: Typical) -> Signal:
        """Separate the signal in ``G`` (C, I), float64, from noise of this standard deviation."""
        usual = typical.direction
        centred = G - G.mean(0)
        mean = centred @ usual
        level = torch.outer(mean, mean)
        rest = centred @ centred.T - level
        part = 1.0
        for _ in range(SIGNAL.rounds):
            values, vectors = torch.linalg.eigh(level + part * rest)
            u = vectors[:, -1]
            across = max(
                _spike(u @ rest @ u, noise, *G.shape),
                typical.across**2 * max(float(u @ level @ u) - noise**2, 0.0),
            )
            part = across / max(across + G.shape[1] * noise**2, SIGNAL.smallest)
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
    """Return the signal in the largest ``‖Gᵀu‖²``, or zero if it does not stand out of the noise.

    A spike of energy q appears as ``(q + I s²)(q + C s²)/q``. Below ``√(I C) s²`` it is invisible.
    """
    wide, narrow = inputs * noise**2, (classes - 1) * noise**2
    half = (float(energy) - wide - narrow) / 2
    if half**2 <= wide * narrow or half <= 0:
        return 0.0
    return half + math.sqrt(half**2 - wide * narrow)


def _direction(values: Tensor, vectors: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """Return mean (C,) and covariance (C, C) of ``u``, of density ``exp(uᵀ K u / 2s²)``.

    ``K`` has these eigenvalues (C,) and eigenvectors (C, C), in ascending order. The first
    eigenvector is that of equal entries: entries of ``u`` sum to zero.
    """
    classes = len(values)
    spread = (noise**2 / (values[-1] - values[:-1]).clamp_min(SIGNAL.smallest)).sqrt()
    generator = torch.Generator().manual_seed(SIGNAL.seed)
    drawn = torch.randn(SIGNAL.draws, classes, generator=generator, dtype=torch.double).to(values)
    drawn[:, 0] = 0.0
    side = drawn[:, :-1] * spread
    inside = 1 - side.square().sum(-1)
    if int((inside > 0).sum()) >= SIGNAL.draws // SIGNAL.accepted:
        side, inside = side[inside > 0], inside[inside > 0]
        u = torch.cat([side, inside.sqrt()[:, None]], 1)
        weight = inside.rsqrt()
    else:  # There is hardly any signal, so draws come from the whole sphere.
        u = drawn / drawn.norm(dim=-1, keepdim=True)
        u = u * u[:, -1:].sign()
        weight = torch.softmax(-(u[:, :-1] / spread).square().sum(-1) / 2, 0)
    weight = (weight / weight.sum())[:, None]
    along = (weight * u)[:, -1].sum()
    second = (weight * u.square()).sum(0)
    second[-1] -= along.square()
    return along * vectors[:, -1], vectors @ torch.diag(second) @ vectors.T


def _root(matrix: Tensor) -> Tensor:
    """Return a matrix R with ``R Rᵀ = matrix``, which is positive semidefinite."""
    values, vectors = torch.linalg.eigh(matrix)
    return torch.mul(vectors, values.clamp_min(0.0).sqrt())
