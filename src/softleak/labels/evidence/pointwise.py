"""A bias, a pointwise activation, then the head: AlexNet, VGG, MLP, LeNet; LayerNorm in ViT."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.factors import Factors
from softleak.head import Head
from softleak.labels.evidence.activations import Activation
from softleak.labels.evidence.relation import (
    TINY,
    Blurred,
    Estimate,
    least_squares,
)

GRID = 6  # points per factor e of the feature's size
SPAN = 1e3  # how much larger or smaller a feature may be than it was on probes
STEPS = 8  # of Gauss–Newton
BENT, SIDES = 8, 32  # entries that have to agree before a second sample is ruled out
COARSE, SIDE = 1e-6, 4.0  # a rounding beyond the dtype's, and how many of it hide a sign
FLAT = 1e-3  # slopes that differ by less see no sign


@dataclass(frozen=True)
class Pointwise:
    """``g_c = Σ_i (Wᵀδ)_i φ'(x_i)`` over the entries of channel c: affine, activation, head.

    ``peak`` is the largest entry of a feature on probes. With ``channels_last`` the feature's
    entries run over channels fastest. ``accuracy`` is the relative error of ``τ`` seen on probes.
    """

    parameter: str
    channels: int
    activation: Activation
    coefficients: tuple[float, ...]
    peak: float = 1.0
    channels_last: bool = False
    accuracy: float = 0.0

    @property
    def explanation(self) -> str:
        return f"a bias gradient, passed through a {self.activation.name} activation"

    def gather(self, entries: Tensor) -> Tensor:
        """Sum over the entries of each channel: (…, I) → (…, m)."""
        if entries.shape[-1] == self.channels:
            return entries
        if self.channels_last:
            return entries.view(*entries.shape[:-1], -1, self.channels).sum(-2)
        return entries.view(*entries.shape[:-1], self.channels, -1).sum(-1)

    def slope(self, x: Tensor) -> Tensor:
        """φ' where the output is ``x``."""
        return self.activation.derivative(x, self.coefficients)

    @property
    def coarsest(self) -> float:
        return math.inf

    def solve(self, g: Tensor, head: Head, factors: Factors) -> Estimate:
        d = head.back(factors.u)
        if not self.activation.homogeneous:
            return self._scan(g, d, factors)
        # Each sign of τ says on which side of zero the feature is, and has to come true.
        above, below = (self._linear(g, d, head, factors, sign) for sign in (1, -1))
        return above.where(above.misfit <= below.misfit, below)

    def notices(self, factors: Factors) -> Tensor:
        """Where φ' bends: at another feature it differs, and two samples have two features.

        A piecewise linear φ' only sees signs. Two samples go unnoticed if all their signs agree,
        so enough entries have to be on either side of zero.
        """
        if not self.activation.homogeneous:
            return torch.full_like(factors.sigma, self.channels >= BENT, dtype=torch.bool)
        above, below = ((side * factors.v > 0).sum(-1) for side in (1, -1))
        zero = factors.v.shape[-1] - above - below
        least = torch.stack([above.maximum(below), zero + above.minimum(below)]).amin(0)
        slopes = self.coefficients
        return (least >= SIDES) & (abs(slopes[0] - slopes[1]) > FLAT * self._steepest)

    def _linear(self, g: Tensor, d: Tensor, head: Head, factors: Factors, sign: int) -> Estimate:
        direction = self.gather(d * self.slope(sign * factors.v))
        heard = ~self.gather(self._sides_unknown(factors)).bool()
        estimate = least_squares(
            torch.where(heard, g, 0.0), torch.where(heard, direction, 0.0), factors,
            head.largest_weight,
        )  # fmt: skip
        return estimate.signed(sign)

    def _sides_unknown(self, factors: Factors) -> Tensor:
        """(N, I) one where rounding hides on which side of zero the feature's entry is."""
        coarse = factors.absolute > COARSE * factors.relative * factors.sigma
        limit = torch.where(coarse, SIDE * factors.absolute, -1.0)[:, None]
        return (factors.v.abs() * factors.sigma[:, None] <= limit).to(factors.v.dtype)

    def _scan(self, g: Tensor, d: Tensor, factors: Factors) -> Estimate:
        """A grid over the size of the feature, then Gauss–Newton steps on the best of it."""
        reach = math.log(SPAN)
        steps = torch.linspace(-reach, reach, int(2 * reach * GRID), dtype=g.dtype, device=g.device)
        tau = (factors.sigma * factors.v.abs().amax(-1))[:, None] / (self.peak * steps.exp())
        tau = torch.cat([tau, -tau], 1)
        losses = torch.cat(
            [self._misfit(g, d, factors, part) for part in torch.split(tau, 32, 1)], 1
        )
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
        size = (factors.sigma[:, None] / tau)[..., None]
        if not self.activation.powers:
            x = size * factors.v[:, None]
            return tau[..., None] * self.gather(d[:, None] * self.slope(x))
        total = torch.zeros_like(size)
        for coefficient, k in zip(self.coefficients, self.activation.powers, strict=True):
            total = total + coefficient * size**k * self.gather(d * factors.v**k)[:, None]
        return tau[..., None] * total

    def _misfit(self, g: Tensor, d: Tensor, factors: Factors, tau: Tensor) -> Tensor:
        rest = g[:, None] - self._predict(d, factors, tau)
        misfit = rest.norm(dim=-1) / g.norm(dim=-1, keepdim=True).clamp_min(TINY)
        return torch.nan_to_num(misfit, nan=math.inf)

    def log_likelihood(self, g: Tensor, seen: Blurred, tau: Tensor) -> Tensor:
        t = tau[:, None]
        if self.activation.homogeneous and len(g) == len(seen.d):
            return self._both_sides(g, seen, t)
        x, blur = seen.x / t, seen.x_variance.sqrt() / t.abs()
        slope = self.slope(x)
        bend = (self.slope(x + blur) - self.slope(x - blur)) / 2
        spread = seen.d_variance * slope.square() + (seen.d * bend).square()
        variance = seen.noise**2 + t.square() * self.gather(spread)
        return seen.density(g - t * self.gather(seen.d * slope), variance).sum(-1)

    def _both_sides(self, g: Tensor, seen: Blurred, t: Tensor) -> Tensor:
        """An entry lies on either side of zero, with the probability that what is seen gives it."""
        entries = t.sign() * seen.x
        places = [
            _log_place(side * entries, seen.x_variance.sqrt(), abs(slope) / self._steepest)
            for side, slope in zip((1, -1), self.coefficients, strict=True)
        ]
        either = torch.logaddexp(*places)
        found = []
        for place, slope in zip(places, self.coefficients, strict=True):
            variance = seen.noise**2 + t.square() * seen.d_variance * slope**2
            found.append(place - either + seen.density(g - t * seen.d * slope, variance))
        return torch.logaddexp(*found).sum(-1)

    @property
    def _steepest(self) -> float:
        return max(TINY, *(abs(slope) for slope in self.coefficients))


def _log_place(x: Tensor, error: Tensor, gain: float) -> Tensor:
    """The log density of entries seen at ``x`` with an ``error``, if they are not below zero.

    They are half of a normal distribution as wide as entries are, times ``gain``: below a ReLU
    that is nothing, and all of them are zero.
    """
    error = error.clamp_min(TINY)
    width = gain * x.square().mean(-1, keepdim=True).sqrt()
    whole = width.hypot(error)
    inside: Tensor = torch.special.log_ndtr(x / error * (width / whole))
    return inside - (x / whole).square() / 2 - whole.log()
