"""Evidence beyond the head's weight (design §3): other gradients that are known functions of ``t``.

Each relation turns one parameter's gradient into ``τ = κ t``, κ being the unknown overall scale
(one if the scale is known), for ANY label. Feature and probabilities follow without knowing κ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from softleak.head import Factors, Head
from softleak.labels.activations import Activation

TINY = torch.finfo(torch.double).tiny
ON_LATTICE = 0.02  # root mean square distance from a lattice point, in units of its spacing
CHANNELS = 16  # fewer could lie on a coarser lattice by chance
GRID = 6  # points per factor e of the feature's size
SPAN = 1e3  # how much larger or smaller a feature may be than it was on probes
STEPS = 8  # of Gauss–Newton


@dataclass(frozen=True, eq=False)
class Estimate:
    """``τ`` of N clients, its error, and how far the gradient is from what it should be then. (N,)."""

    scalar: Tensor
    error: Tensor
    misfit: Tensor  # ‖g − predicted‖ / ‖g‖


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

    def solve(self, g: Tensor, head: Head, factors: Factors) -> Estimate:
        """``τ`` from the gradients ``g`` (N, m)."""
        ...


@dataclass(frozen=True)
class HeadBias:
    """``G_b = δ``: the classic bias ratio, over all rows at once."""

    parameter: str

    @property
    def explanation(self) -> str:
        return "the head's bias gradient is p − y itself"

    def solve(self, g: Tensor, head: Head, factors: Factors) -> Estimate:
        return _linear(g, factors.u, factors)


@dataclass(frozen=True)
class Pointwise:
    """``g_c = Σ_i (Wᵀδ)_i φ'(x_i)`` over the entries of channel c: affine, activation, head.

    ``peak`` is the largest entry of a feature on probes. With ``channels_last`` the feature's
    entries run over channels fastest.
    """

    parameter: str
    channels: int
    activation: Activation
    coefficients: tuple[float, ...]
    peak: float = 1.0
    channels_last: bool = False

    @property
    def explanation(self) -> str:
        return f"a bias gradient, passed through a {self.activation.name} activation"

    def gather(self, entries: Tensor) -> Tensor:
        """Sum over the entries of each channel: (…, I) → (…, m)."""
        if entries.shape[-1] == self.channels:
            return entries
        if self.channels_last:
            return entries.unflatten(-1, (-1, self.channels)).sum(-2)
        return entries.unflatten(-1, (self.channels, -1)).sum(-1)

    def slope(self, x: Tensor) -> Tensor:
        """φ' where the output is ``x``."""
        return self.activation.derivative(x, self.coefficients)

    def solve(self, g: Tensor, head: Head, factors: Factors) -> Estimate:
        d = factors.u @ head.W
        if self.activation.homogeneous:
            tries = [_linear(g, self.gather(d * self.slope(s * factors.v)), factors) for s in (1, -1)]
            # Each side of zero assumes a sign of τ; the assumption must come true.
            right = tries[0].misfit <= tries[1].misfit
            return Estimate(*(torch.where(right, a, b) for a, b in zip(*map(_parts, tries), strict=True)))
        return self._scan(g, d, factors)

    def _scan(self, g: Tensor, d: Tensor, factors: Factors) -> Estimate:
        """A grid over the size of the feature, then Gauss–Newton steps on the best of it."""
        reach = math.log(SPAN)
        steps = torch.linspace(-reach, reach, int(2 * reach * GRID), dtype=g.dtype, device=g.device)
        tau = (factors.sigma * factors.v.abs().amax(-1))[:, None] / (self.peak * steps.exp())
        tau = torch.cat([tau, -tau], 1)
        losses = torch.cat([self._misfit(g, d, factors, part) for part in tau.split(32, 1)], 1)
        best = tau.gather(1, losses.argmin(-1, keepdim=True))
        for _ in range(STEPS):
            step = best * 1e-7
            here, there = (self._predict(d, factors, best + s)[:, 0] for s in (-step, step))
            slope = (there - here) / (2 * step)
            rest = g - (here + there) / 2
            best = best + ((rest * slope).sum(-1) / slope.square().sum(-1).clamp_min(TINY))[:, None]
        misfit = self._misfit(g, d, factors, best)[:, 0]
        gain = g.norm(dim=-1) / slope.norm(dim=-1).clamp_min(TINY)
        return Estimate(best[:, 0], 4 * (misfit + factors.relative) * gain, misfit)

    def _predict(self, d: Tensor, factors: Factors, tau: Tensor) -> Tensor:
        """(N, S, m) the gradient at scalars ``tau`` (N, S)."""
        x = (factors.sigma[:, None] / tau)[..., None] * factors.v[:, None]
        return tau[..., None] * self.gather(d[:, None] * self.slope(x))

    def _misfit(self, g: Tensor, d: Tensor, factors: Factors, tau: Tensor) -> Tensor:
        rest = g[:, None] - self._predict(d, factors, tau)
        misfit = rest.norm(dim=-1) / g.norm(dim=-1, keepdim=True).clamp_min(TINY)
        return misfit.nan_to_num(nan=math.inf)


@dataclass(frozen=True)
class Lattice:
    """``g_c = (Wᵀδ)_c k_c / n``: k of n positions active, averaged by global pooling."""

    parameter: str
    positions: int

    @property
    def explanation(self) -> str:
        return f"a bias gradient on the lattice of k/{self.positions} active positions"

    def solve(self, g: Tensor, head: Head, factors: Factors) -> Estimate:
        n = self.positions
        d = factors.u @ head.W
        ratio = g / torch.where(d == 0, TINY, d)
        # Channels with a small (Wᵀδ)_c have a ratio full of rounding.
        heard = d.abs() >= 0.05 * d.abs().amax(-1, keepdim=True)
        loudest = torch.where(heard, g.abs(), -1).argmax(-1, keepdim=True)
        k = torch.arange(1, n + 1, dtype=g.dtype, device=g.device)
        tau = ratio.gather(1, loudest) * n / k  # (N, n): that channel has k active positions
        counts = n * ratio[:, None] / torch.where(tau == 0, TINY, tau)[..., None]
        nearest = counts.round().clamp(0, n)
        off = torch.where(heard[:, None], counts - nearest, 0.0).square().sum(-1)
        off = (off / heard.sum(-1, keepdim=True)).sqrt()
        # The coarsest lattice that fits: every finer one fits as well.
        chosen = torch.where(off <= ON_LATTICE, k, n + off / (1 + off)).argmin(-1, keepdim=True)
        count = nearest.gather(1, chosen[..., None].expand(-1, -1, d.shape[-1]))[:, 0]
        estimate = _linear(torch.where(heard, g, 0.0), torch.where(heard, d * count / n, 0.0), factors)
        fits = (off.gather(1, chosen)[:, 0] <= ON_LATTICE) & ((count > 0) & heard).sum(-1).ge(CHANNELS)
        misfit = torch.where(fits, estimate.misfit, math.inf)
        return Estimate(estimate.scalar, estimate.error, misfit)


def _linear(g: Tensor, direction: Tensor, factors: Factors) -> Estimate:
    """``g = τ · direction``, by least squares."""
    size = direction.square().sum(-1).clamp_min(TINY)
    tau = (g * direction).sum(-1) / size
    rest = (g - tau[:, None] * direction).norm(dim=-1)
    misfit = rest / g.norm(dim=-1).clamp_min(TINY)
    return Estimate(tau, 4 * (rest / size.sqrt() + factors.relative * tau.abs()), misfit)


def _parts(estimate: Estimate) -> tuple[Tensor, Tensor, Tensor]:
    return estimate.scalar, estimate.error, estimate.misfit
