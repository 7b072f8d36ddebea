"""Evidence beyond the head's weight (design §3): other gradients that are known functions of ``t``.

Each relation turns one parameter's gradient into ``τ = κ t``, κ being the unknown overall scale
(one if the scale is known), for ANY label. Feature and probabilities follow without knowing κ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from softleak.factors import Factors
from softleak.head import Head

TINY = torch.finfo(torch.double).tiny
ROUNDING = 16.0  # a misfit of so many roundings is nothing but rounding


@dataclass(frozen=True, eq=False)
class Estimate:
    """``τ`` of N clients, its error, and how far the gradient is from what it implies. All (N,)."""

    scalar: Tensor
    error: Tensor
    misfit: Tensor  # ‖g − predicted‖ / ‖g‖

    def signed(self, sign: int) -> Estimate:
        """This estimate as an answer to "what if τ had this sign"."""
        misfit = torch.where(self.scalar * sign > 0, self.misfit, torch.inf)
        return Estimate(self.scalar, self.error, misfit)

    def where(self, chosen: Tensor, other: Estimate) -> Estimate:
        """This estimate for the chosen clients, another for the rest."""
        return Estimate(
            torch.where(chosen, self.scalar, other.scalar),
            torch.where(chosen, self.error, other.error),
            torch.where(chosen, self.misfit, other.misfit),
        )


class Relation(Protocol):
    """One parameter whose gradient determines ``τ``."""

    @property
    def parameter(self) -> str:
        """Its name in the share."""
        ...

    @property
    def explanation(self) -> str:
        """One line for people."""
        ...

    @property
    def coarsest(self) -> float:
        """The relative error of a gradient beyond which the relation says nothing of it."""
        ...

    @property
    def accuracy(self) -> float:
        """The relative error of ``τ`` seen on probes, where the truth is known."""
        ...

    def solve(self, g: Tensor, head: Head, factors: Factors) -> Estimate:
        """``τ`` from the gradients ``g`` (N, m)."""
        ...


@runtime_checkable
class Witness(Protocol):
    """A relation that can also tell one sample from several."""

    def notices(self, factors: Factors) -> Tensor:
        """(N,) whether a second sample would have broken the relation for this client."""
        ...


@dataclass(frozen=True, eq=False)
class Blurred:
    """What noise of standard deviation ``noise`` leaves of one client's factors.

    Means and variances of ``u`` (C,), ``d = Wᵀu`` (I,) and ``σ v`` (I,). ``density`` is the log
    density of noise, of deviations and their variance.
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
    """A relation that can also be weighed against noise; one that cannot is then left out."""

    @property
    def parameter(self) -> str:
        """Its name in the share."""
        ...

    def log_likelihood(self, g: Tensor, seen: Blurred, tau: Tensor) -> Tensor:
        """(S,) of scalars τ (S,), given the noisy gradient ``g`` (m,); constants left out."""
        ...


def log_normal(rest: Tensor, variance: Tensor) -> Tensor:
    """The log density of a normal variable, but for a constant."""
    return -(variance.log() + rest.square() / variance) / 2


def log_laplace(rest: Tensor, variance: Tensor) -> Tensor:
    """The log density of Laplace's distribution, constants left out."""
    return -rest.abs() * (2 / variance).sqrt() - variance.log() / 2


def least_squares(g: Tensor, direction: Tensor, factors: Factors, entry: float = 0.0) -> Estimate:
    """``g = τ · direction``, by least squares; a gradient of zeros says nothing.

    ``entry`` is the size of the terms a client sums, in its own precision, for one entry.
    """
    size = direction.square().sum(-1).clamp_min(TINY).sqrt()
    tau = (g * direction).sum(-1) / size.square()
    rest = (g - tau[:, None] * direction).norm(dim=-1)
    whole = g.norm(dim=-1)
    misfit = torch.where(whole > 0, rest / whole.clamp_min(TINY), torch.inf)
    # Rounding is independent from entry to entry and averages out; anything larger may not be.
    independent = misfit <= ROUNDING * factors.relative
    rest = torch.where(independent, rest / direction.shape[-1] ** 0.5, rest)
    rounding = factors.relative * tau.abs() * (1 + entry / size)
    return Estimate(tau, 4 * (rest / size + rounding), misfit)
