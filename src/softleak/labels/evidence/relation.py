"""The contract of a piece of evidence: another gradient that is a known function of ``t``.

Each relation turns one parameter's gradient into ``τ = κ t``, for any label. Here κ is the unknown
overall scale of the share, which is one if the scale is known. Feature and probabilities follow
from τ without knowing κ (docs/method.md, Which scalar).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from softleak.factors import SMALLEST_NORMAL, Factors
from softleak.head import Head


@dataclass(frozen=True)
class RelationSettings:
    """How the error of a scalar follows from a misfit.

    Attributes:
        independent: a misfit of up to this many roundings is rounding alone. It is then independent
            from entry to entry and averages out; a larger one may not.
        margin: how many times the estimated error is stated, so that it is a bound.
    """

    independent: float = 16.0
    margin: float = 4.0


RELATION = RelationSettings()


@dataclass(frozen=True, eq=False)
class Estimate:
    """What one relation says of N clients.

    Attributes:
        scalar: (N,) τ.
        error: (N,) a bound of its absolute error.
        misfit: (N,) ``‖g − predicted‖ / ‖g‖``. It is infinite if the gradient says nothing.
    """

    scalar: Tensor
    error: Tensor
    misfit: Tensor

    def signed(self, sign: int) -> Estimate:
        """Return this estimate with an infinite misfit where τ does not have this sign."""
        misfit = torch.where(self.scalar * sign > 0, self.misfit, torch.inf)
        return Estimate(self.scalar, self.error, misfit)

    def where(self, chosen: Tensor, other: Estimate) -> Estimate:
        """Return this estimate for the ``chosen`` clients (N,), and another for the rest."""
        return Estimate(
            torch.where(chosen, self.scalar, other.scalar),
            torch.where(chosen, self.error, other.error),
            torch.where(chosen, self.misfit, other.misfit),
        )


class Relation(Protocol):
    """A relation says how the gradient of one parameter determines ``τ``."""

    @property
    def parameter(self) -> str:
        """Return the name of the parameter in the share."""
        ...

    @property
    def explanation(self) -> str:
        """What the relation is, in one line for people."""
        ...

    @property
    def coarsest(self) -> float:
        """The relative error of a gradient beyond which the relation says nothing."""
        ...

    @property
    def accuracy(self) -> float:
        """The relative error of ``τ`` that was seen on probes, where the truth is known."""
        ...

    def solve(self, g: Tensor, head: Head, factors: Factors) -> Estimate:
        """Estimate ``τ`` from the gradients ``g`` (N, m) of N clients with these factors."""
        ...


class Witness(Protocol):
    """A relation that can also tell one sample from several."""

    def notices(self, factors: Factors) -> Tensor:
        """Return (N,) whether a second sample would have broken each client's relation."""
        ...


@dataclass(frozen=True, eq=False)
class Blurred:
    """What noise leaves of one client's factors.

    Attributes:
        u: (C,) the mean of ``u``, and ``u_variance`` (C,) the variance of its entries.
        d: (I,) the mean of ``d = Wᵀu``, and ``d_variance`` (I,) the variance of its entries.
        x: (I,) the mean of ``σ v``, and ``x_variance`` (I,) the variance of its entries.
        noise: the standard deviation of the noise on an entry of a gradient.
        density: the log density of the noise, given deviations and their variance.
    """

    u: Tensor
    u_variance: Tensor
    d: Tensor
    d_variance: Tensor
    x: Tensor
    x_variance: Tensor
    noise: float
    density: Callable[[Tensor, Tensor], Tensor]


@runtime_checkable
class NoisyRelation(Protocol):
    """A relation that also has a likelihood; behind noise, a relation without one is left out."""

    @property
    def parameter(self) -> str:
        """Return the name of the parameter in the share."""
        ...

    def log_likelihood(self, g: Tensor, seen: Blurred, tau: Tensor) -> Tensor:
        """Return the log likelihood (S,) of τ (S,), up to a constant, given one gradient (m,)."""
        ...


def log_normal(rest: Tensor, variance: Tensor) -> Tensor:
    """Return the log density of the normal distribution, up to a constant."""
    return -(variance.log() + rest.square() / variance) / 2


def log_laplace(rest: Tensor, variance: Tensor) -> Tensor:
    """Return the log density of Laplace's distribution, up to a constant."""
    return -rest.abs() * (2 / variance).sqrt() - variance.log() / 2


def least_squares(g: Tensor, direction: Tensor, factors: Factors, entry: float = 0.0) -> Estimate:
    """Solve ``g = τ · direction`` for τ by least squares.

    Args:
        g: (N, m) the gradients. A gradient of zeros says nothing and has an infinite misfit.
        direction: (N, m) the gradients that τ = 1 would give.
        factors: the factors of the N head gradients.
        entry: the size of the terms that a client sums, in its own precision, for one entry.

    Returns:
        The estimate, with an error that bounds the effect of rounding and of the misfit.
    """
    size = direction.square().sum(-1).clamp_min(SMALLEST_NORMAL).sqrt()
    tau = (g * direction).sum(-1) / size.square()
    rest = torch.linalg.vector_norm(g - tau[:, None] * direction, dim=-1)
    whole = torch.linalg.vector_norm(g, dim=-1)
    misfit = torch.where(whole > 0, rest / whole.clamp_min(SMALLEST_NORMAL), torch.inf)
    independent = misfit <= RELATION.independent * factors.relative
    rest = torch.where(independent, rest / direction.shape[-1] ** 0.5, rest)
    rounding = factors.relative * tau.abs() * (1 + entry / size)
    return Estimate(tau, RELATION.margin * (rest / size + rounding), misfit)
