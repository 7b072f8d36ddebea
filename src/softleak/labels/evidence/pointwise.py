"""Fit pointwise relations to probes: which activation, and its coefficients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.core.factors import SMALLEST_NORMAL, Factors
from softleak.core.head import Head
from softleak.labels.evidence.relation import (
    PROBE_TOLERANCE,
    Blurred,
    Estimate,
    Probe,
    least_squares,
)


@dataclass(frozen=True)
class Activation:
    """The derivative ``φ'`` as a linear combination of functions of the output ``x =
    φ(z)``.

    Attributes:
        name: what it is called in explanations.
        basis: the functions; ``basis(x)`` has one tensor for each coefficient.
        homogeneous: whether the basis depends on the sign of ``x`` alone. Then ``t`` follows
            linearly.
        powers: the exponents, if the basis consists of powers of ``x``. Then sums over entries
            need to be computed once for all scales.
    """

    name: str
    basis: Callable[[Tensor], tuple[Tensor, ...]]
    homogeneous: bool = False
    powers: tuple[int, ...] = ()

    def derivative(self, x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
        """Return ``φ'`` where the output is ``x``, of the same shape."""
        terms = zip(coefficients, self.basis(x), strict=True)
        return torch.stack([c * term for c, term in terms]).sum(0)


def _sides(x: Tensor) -> tuple[Tensor, ...]:
    """Return the indicators of positive and of negative outputs."""
    return ((x > 0).to(x.dtype), (x < 0).to(x.dtype))


def _exponential_below(x: Tensor) -> tuple[Tensor, ...]:
    """Return a basis for ``φ' = 1`` above zero and ``φ' = φ + α`` below."""
    above, below = _sides(x)
    return (above, below, below * x)


def _softsign(x: Tensor) -> tuple[Tensor, ...]:
    """Return a basis for ``φ' = (1 − |φ|)²``."""
    return (torch.ones_like(x), x.abs(), x * x)


# The first basis that explains the probes is taken, so simpler ones come first.
KNOWN_ACTIVATIONS: tuple[Activation, ...] = (
    Activation("piecewise linear", _sides, homogeneous=True),  # identity, ReLU, leaky, dropout gain
    Activation("sigmoid", lambda x: (x, x * x), powers=(1, 2)),
    Activation("tanh", lambda x: (torch.ones_like(x), x * x), powers=(0, 2)),
    Activation("ELU", _exponential_below),  # also SELU and CELU
    Activation("softplus", lambda x: (torch.ones_like(x), torch.exp(-x.clamp_min(0.0)))),
    Activation("softsign", _softsign),
)


# How the scalar of a curved activation is searched, and what rules out a second sample.
POINTWISE_DENSITY = 6  # grid points per factor e of the feature's size
POINTWISE_SPAN = 1e3  # how many times larger or smaller a feature may be than it was on probes
POINTWISE_NEWTON = 8  # Gauss–Newton steps from the best point of the grid
POINTWISE_DIFFERENCE = 1e-7  # the relative step by which derivatives are estimated
POINTWISE_CHUNK = 32  # grid points that are evaluated at once
POINTWISE_MARGIN = 4.0  # how many times the estimated error is stated, so that it is a bound
POINTWISE_BENT = 8  # entries of a curved activation that have to agree to rule out a second sample
POINTWISE_SIDES = 32  # entries on either side of zero that a piecewise linear one needs for that
POINTWISE_COARSE = 1e-6  # rounding relative to that of the dtype beyond which signs may be hidden
POINTWISE_SIDE = 4.0  # an entry within this many roundings of zero has an unknown sign
# Slopes on both sides of zero that differ by less, relative to the steeper one, do not depend on
# the sign.
POINTWISE_FLAT = 1e-3


@dataclass(frozen=True)
class Pointwise:
    """The relation ``g_c = Σ_i (Wᵀδ)_i φ'(x_i)``, summed over the entries of channel c.

    Attributes:
        parameter: the name of the bias in a share.
        channels: the number m of its entries.
        activation: the form of ``φ'`` as a function of the output.
        coefficients: the coefficients of ``φ'`` that probing found.
        peak: the largest entry of a feature on probes.
        channels_last: whether the feature's entries run over channels fastest.
        accuracy: the relative error of ``τ`` that was seen on probes.
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
        """What the relation is, in one line for people."""
        return f"a bias gradient, passed through a {self.activation.name} activation"

    def gather(self, entries: Tensor) -> Tensor:
        """Return the sums (…, m) over the entries (…, I) of each channel."""
        if entries.shape[-1] == self.channels:
            return entries
        if self.channels_last:
            return entries.view(*entries.shape[:-1], -1, self.channels).sum(-2)
        return entries.view(*entries.shape[:-1], self.channels, -1).sum(-1)

    def slope(self, x: Tensor) -> Tensor:
        """Return ``φ'`` where the output is ``x``, of the same shape."""
        return self.activation.derivative(x, self.coefficients)

    @property
    def coarsest(self) -> float:
        """The relative error of a gradient beyond which the relation says nothing."""
        return math.inf

    def solve(self, g: Tensor, head: Head, factors: Factors) -> Estimate:
        """Estimate ``τ``: linearly if ``φ'`` depends on signs alone, else by a search over |x|."""
        d = head.back(factors.u)
        if not self.activation.homogeneous:
            return self._scan(g, d, factors)
        # Each sign of τ implies a sign of the feature, and the estimate has to confirm it.
        directions = [self.gather(d * self.slope(sign * factors.v)) for sign in (1, -1)]
        heard = self._heard(factors)
        if heard is not None:
            g, *directions = (torch.where(heard, entries, 0.0) for entries in (g, *directions))
        above, below = (
            least_squares(g, direction, factors, head.largest_weight).signed(sign)
            for direction, sign in zip(directions, (1, -1), strict=True)
        )
        return above.where(above.misfit <= below.misfit, below)

    def notices(self, factors: Factors) -> Tensor:
        """Return (N,) whether a second sample would have broken the relation.

        A curved activation has another ``φ'`` at another feature, and two samples have two
        features. A piecewise linear one depends on signs alone, so two samples go unnoticed if all
        their signs agree. Enough entries therefore have to be on either side of zero.
        """
        if not self.activation.homogeneous:
            return torch.full_like(factors.sigma, self.channels >= POINTWISE_BENT, dtype=torch.bool)
        above, below = ((side * factors.v > 0).sum(-1) for side in (1, -1))
        zero = factors.v.shape[-1] - above - below
        least = torch.stack([above.maximum(below), zero + above.minimum(below)]).amin(0)
        slopes = self.coefficients
        return (least >= POINTWISE_SIDES) & (
            abs(slopes[0] - slopes[1]) > POINTWISE_FLAT * self._steepest
        )

    def _heard(self, factors: Factors) -> Tensor | None:
        """Return (N, m), whether the signs behind an entry are known; None if all of them are.

        Rounding may hide the sign of an entry of the feature, and with it the slope there.
        """
        coarse = factors.absolute > POINTWISE_COARSE * factors.relative * factors.sigma
        if not bool(coarse.any()):
            return None
        limit = torch.where(coarse, POINTWISE_SIDE * factors.absolute, -1.0)[:, None]
        unknown = factors.v.abs() * factors.sigma[:, None] <= limit
        return ~self.gather(unknown.to(factors.v.dtype)).bool()

    def _scan(self, g: Tensor, d: Tensor, factors: Factors) -> Estimate:
        """Search a grid over the feature's size, then refine its best point by Gauss–Newton."""
        reach = math.log(POINTWISE_SPAN)
        count = int(2 * reach * POINTWISE_DENSITY)
        steps = torch.linspace(-reach, reach, count, dtype=g.dtype, device=g.device)
        tau = (factors.sigma * factors.v.abs().amax(-1))[:, None] / (self.peak * steps.exp())
        tau = torch.cat([tau, -tau], 1)
        parts = torch.split(tau, POINTWISE_CHUNK, 1)
        losses = torch.cat([self._misfit(g, d, factors, part) for part in parts], 1)
        best = tau.gather(1, losses.argmin(-1, keepdim=True))
        for _ in range(POINTWISE_NEWTON):
            step = best * POINTWISE_DIFFERENCE
            here, there = (self._predict(d, factors, best + s)[:, 0] for s in (-step, step))
            slope = (there - here) / (2 * step)
            rest = g - (here + there) / 2
            best = (
                best
                + ((rest * slope).sum(-1) / slope.square().sum(-1).clamp_min(SMALLEST_NORMAL))[
                    :, None
                ]
            )
        misfit = self._misfit(g, d, factors, best)[:, 0]
        gain = g.norm(dim=-1) / slope.norm(dim=-1).clamp_min(SMALLEST_NORMAL)
        error = POINTWISE_MARGIN * (misfit + factors.relative) * gain
        return Estimate(best[:, 0], error, misfit)

    def _predict(self, d: Tensor, factors: Factors, tau: Tensor) -> Tensor:
        """Return the gradients (N, S, m) that scalars ``tau`` (N, S) imply."""
        size = (factors.sigma[:, None] / tau)[..., None]
        if not self.activation.powers:
            x = size * factors.v[:, None]
            return tau[..., None] * self.gather(d[:, None] * self.slope(x))
        total = torch.zeros_like(size)
        for coefficient, k in zip(self.coefficients, self.activation.powers, strict=True):
            total = total + coefficient * size**k * self.gather(d * factors.v**k)[:, None]
        return tau[..., None] * total

    def _misfit(self, g: Tensor, d: Tensor, factors: Factors, tau: Tensor) -> Tensor:
        """Return the relative misfits (N, S) at scalars ``tau`` (N, S)."""
        rest = g[:, None] - self._predict(d, factors, tau)
        misfit = rest.norm(dim=-1) / g.norm(dim=-1, keepdim=True).clamp_min(SMALLEST_NORMAL)
        return torch.nan_to_num(misfit, nan=math.inf)

    def log_likelihood(self, g: Tensor, seen: Blurred, tau: Tensor) -> Tensor:
        """Return the log likelihood (S,), with ``φ'`` linearised over the noise of the feature."""
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
        """Return the log likelihood, summed over both sides of zero for each entry.

        Each side has the probability that the noisy feature gives it.
        """
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
        """The largest slope, by size."""
        return max(SMALLEST_NORMAL, *(abs(slope) for slope in self.coefficients))


def _log_place(x: Tensor, error: Tensor, gain: float) -> Tensor:
    """Return the log density of entries seen at ``x`` with an ``error``, if they are positive.

    Entries are assumed to have half a normal distribution, as wide as entries usually are times
    ``gain``. On the side where a ReLU is flat the gain is zero, and all entries are zero.
    """
    error = error.clamp_min(SMALLEST_NORMAL)
    width = gain * x.square().mean(-1, keepdim=True).sqrt()
    whole = width.hypot(error)
    inside: Tensor = torch.special.log_ndtr(x / error * (width / whole))
    return inside - (x / whole).square() / 2 - whole.log()


def fit_pointwise(name: str, head: Head, runs: Sequence[Probe]) -> list[Pointwise]:
    """Return the pointwise relations that explain some probes of one parameter."""
    gradient, features = runs[0].share[name], head.W.shape[1]
    if gradient.ndim != 1 or name == head.bias_name or not gradient.any():
        return []
    if features % len(gradient):
        return []
    orders = (False, True) if len(gradient) < features else (False,)
    return [
        relation
        for activation in KNOWN_ACTIVATIONS
        for channels_last in orders
        for relation in _fitted(name, len(gradient), activation, channels_last, runs)
    ]


def _fitted(
    name: str, channels: int, activation: Activation, channels_last: bool, runs: Sequence[Probe]
) -> Iterator[Pointwise]:
    """Yield the relation whose coefficients explain some probes, if any do."""
    peak = max(float(run.feature.abs().max()) for run in runs)
    blank = Pointwise(name, channels, activation, (), peak, channels_last)
    columns = [
        torch.stack([blank.gather(run.d * term) for term in activation.basis(run.feature)], -1)
        for run in runs
    ]
    A = torch.cat(columns).cpu()
    g = torch.cat([run.share[name] for run in runs]).cpu()
    # A basis is degenerate on a model that never visits one side of zero; gelsd allows for that.
    theta = torch.linalg.lstsq(A, g.double()[:, None], driver="gelsd").solution[:, 0]
    if (A @ theta - g).norm() <= PROBE_TOLERANCE * torch.finfo(g.dtype).eps * g.norm():
        yield replace(blank, coefficients=tuple(theta.tolist()))
