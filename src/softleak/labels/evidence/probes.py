"""Find out which evidence a model offers, by running it on random inputs.

``Pointwise`` is that of a bias before an activation, with ``φ'`` as a function of the output ``φ``.
``Lattice`` is that of a bias before ReLU, global average pooling and the head, as in ResNets.

No module names are consulted. A relation is used for a parameter if and only if it gives the true
scalar of probes that it was not fitted to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import ClassVar

import torch
from torch import Tensor, nn

from softleak.core.errors import SoftleakError
from softleak.core.factors import SMALLEST_NORMAL, Factors, factor
from softleak.core.head import Head
from softleak.core.input_spec import Layout
from softleak.core.knowledge import Knowledge
from softleak.core.subject import Subject
from softleak.labels.evidence.relation import (
    PROBE_TOLERANCE,
    Blurred,
    Estimate,
    Probe,
    Relation,
    fit_head_bias,
    least_squares,
    probe_runs,
)


@dataclass(frozen=True)
class Activation:
    """The derivative ``φ'`` as a linear combination of functions of the output ``x = φ(z)``."""

    name: str  # what it is called in explanations
    basis: Callable[[Tensor], tuple[Tensor, ...]]  # one tensor for each coefficient
    homogeneous: bool = False  # whether it depends on signs alone; then ``t`` follows linearly
    powers: tuple[int, ...] = ()  # of ``x``, if it consists of them; then sums serve all scales

    def derivative(self, x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
        """Return ``φ'`` where the output is ``x``, of the same shape."""
        terms = zip(coefficients, self.basis(x), strict=True)
        return torch.stack([c * term for c, term in terms]).sum(0)


def _sides(x: Tensor) -> tuple[Tensor, ...]:
    """Return the indicators of positive and of negative outputs."""
    return ((x > 0).to(x.dtype), (x < 0).to(x.dtype))


# The first basis that explains the probes is taken, so simpler ones come first.
KNOWN_ACTIVATIONS: tuple[Activation, ...] = (
    Activation("piecewise linear", _sides, homogeneous=True),  # identity, ReLU, leaky, dropout gain
    Activation("sigmoid", lambda x: (x, x * x), powers=(1, 2)),
    Activation("tanh", lambda x: (torch.ones_like(x), x * x), powers=(0, 2)),
    # φ' = 1 above zero and φ + α below: ELU, SELU and CELU
    Activation("ELU", lambda x: (*_sides(x), _sides(x)[1] * x)),
    Activation("softplus", lambda x: (torch.ones_like(x), torch.exp(-x.clamp_min(0.0)))),
    Activation("softsign", lambda x: (torch.ones_like(x), x.abs(), x * x)),  # φ' = (1 − |φ|)²
)


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
POINTWISE_FLAT = 1e-3  # of the steeper slope: how much those on both sides of zero may differ


@dataclass(frozen=True)
class Pointwise:
    """The relation ``g_c = Σ_i (Wᵀδ)_i φ'(x_i)``, summed over the entries of channel c."""

    parameter: str  # the name of the bias in a share
    channels: int  # the number m of its entries
    activation: Activation  # the form of ``φ'`` as a function of the output
    coefficients: tuple[float, ...]  # the coefficients of ``φ'`` that probing found
    peak: float = 1.0  # the largest entry of a feature on probes
    channels_last: bool = False  # whether the feature's entries run over channels fastest
    accuracy: float = 0.0  # the relative error of ``τ`` that was seen on probes
    coarsest: ClassVar[float] = math.inf

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

    def solve(self, g: Tensor, head: Head, factors: Factors) -> Estimate:
        """Estimate ``τ``: linearly if ``φ'`` depends on signs alone, else by a search over |x|."""
        d = head.back(factors.u)
        if not self.activation.homogeneous:
            return self._scan(g, d, factors)
        # Each sign of τ implies a sign of the feature, and the estimate has to confirm it.
        directions = [self.gather(d * self.slope(sign * factors.v)) for sign in (1, -1)]
        # Rounding may hide the sign of an entry of the feature, and with it the slope there.
        coarse = factors.absolute > POINTWISE_COARSE * factors.relative * factors.sigma
        if bool(coarse.any()):
            limit = torch.where(coarse, POINTWISE_SIDE * factors.absolute, -1.0)[:, None]
            unknown = factors.v.abs() * factors.sigma[:, None] <= limit
            heard = ~self.gather(unknown.to(factors.v.dtype)).bool()
            g, *directions = (torch.where(heard, entries, 0.0) for entries in (g, *directions))
        above, below = (least_squares(g, d, factors, head.largest_weight) for d in directions)
        up = torch.where(above.scalar > 0, above.misfit, torch.inf)
        down = torch.where(below.scalar < 0, below.misfit, torch.inf)
        scalar = torch.where(up <= down, above.scalar, below.scalar)
        error = torch.where(up <= down, above.error, below.error)
        return Estimate(scalar, error, up.minimum(down))

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
        bent = abs(slopes[0] - slopes[1]) > POINTWISE_FLAT * self._steepest
        return (least >= POINTWISE_SIDES) & bent

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
            size = slope.square().sum(-1).clamp_min(SMALLEST_NORMAL)
            best = best + ((rest * slope).sum(-1) / size)[:, None]
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
        """Return the log likelihood, summed over both sides of zero for each entry."""
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


def _is_bias(name: str, gradient: Tensor, head: Head) -> bool:
    """Return whether a gradient may be that of a bias before the head, and says anything."""
    return gradient.ndim == 1 and name != head.bias_name and bool(gradient.any())


def fit_pointwise(name: str, head: Head, runs: Sequence[Probe]) -> list[Pointwise]:
    """Return the pointwise relations that explain some probes of one parameter."""
    gradient, features = runs[0].share[name], head.W.shape[1]
    if not _is_bias(name, gradient, head) or features % len(gradient):
        return []
    orders = (False, True) if len(gradient) < features else (False,)
    fits = (
        _fitted(name, len(gradient), *kind, runs) for kind in product(KNOWN_ACTIVATIONS, orders)
    )
    return [one for one in fits if one is not None]


def _fitted(
    name: str, channels: int, activation: Activation, channels_last: bool, runs: Sequence[Probe]
) -> Pointwise | None:
    """Return the relation whose coefficients explain some probes, if any do."""
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
    if not (A @ theta - g).norm() <= PROBE_TOLERANCE * torch.finfo(g.dtype).eps * g.norm():
        return None
    return replace(blank, coefficients=tuple(theta.tolist()))


# When ratios count as lying on a lattice, in units of its spacing.
LATTICE_DISTANCE = 0.02  # root mean square, from lattice points: ratios this close lie on them
LATTICE_NEARBY = 0.25  # a lattice is not even fitted to ratios further from it
LATTICE_HEARD = 0.05  # of the largest ``|Wᵀδ|``: a smaller one makes ratios full of rounding
LATTICE_CHANNELS = 16  # channels that have to speak; fewer could lie on a lattice by chance


@dataclass(frozen=True)
class Lattice:
    """The relation ``g_c = h (Wᵀδ)_c k_c / n``: in channel c, k of n positions are active.

    The ratios ``g_c / (Wᵀu)_c`` lie on a lattice of spacing ``τ/n``, which is their approximate
    greatest common divisor.
    """

    parameter: str  # the name of the bias in a share
    positions: int  # n, the number of positions that global pooling averages
    gain: float = 1.0  # h: not one if an affine layer is in between, such as a fresh BatchNorm
    accuracy: float = 0.0  # the relative error of ``τ`` that was seen on probes

    @property
    def explanation(self) -> str:
        """What the relation is, in one line for people."""
        return f"a bias gradient on the lattice of k/{self.positions} active positions"

    @property
    def coarsest(self) -> float:
        """The relative error of a gradient beyond which the relation says nothing."""
        return LATTICE_DISTANCE / self.positions

    def solve(self, g: Tensor, head: Head, factors: Factors) -> Estimate:
        """Estimate ``τ``: the loudest channel has 1…n active positions, and one count fits all."""
        n = self.positions
        d = self.gain * head.back(factors.u)
        ratio = g / torch.where(d == 0, SMALLEST_NORMAL, d)
        heard = d.abs() >= LATTICE_HEARD * d.abs().amax(-1, keepdim=True)
        loudest = torch.where(heard, g.abs(), -1).argmax(-1, keepdim=True)
        k = torch.arange(1, n + 1, dtype=g.dtype, device=g.device)
        tau = ratio.gather(1, loudest) * n / k  # (N, n) if that channel has k active positions
        counts = n * ratio[:, None] / torch.where(tau == 0, SMALLEST_NORMAL, tau)[..., None]
        nearest = counts.round().clamp(0, n)
        off = torch.where(heard[:, None], counts - nearest, 0.0).square().sum(-1)
        off = (off / heard.sum(-1, keepdim=True)).sqrt()
        # The coarsest lattice that fits is taken, since every finer one fits as well.
        order = torch.where(off <= LATTICE_DISTANCE, k, n + off / (1 + off))
        chosen = order.argmin(-1, keepdim=True)
        count = nearest.gather(1, chosen[..., None].expand(-1, -1, d.shape[-1]))[:, 0]
        own, direction = torch.where(heard, g, 0.0), torch.where(heard, d * count / n, 0.0)
        estimate = least_squares(own, direction, factors, head.largest_weight)
        distance = off.gather(1, chosen)[:, 0]
        misfit = torch.where(distance <= LATTICE_DISTANCE, estimate.misfit, distance)
        # Too few channels could lie on any lattice, so they neither prove nor refute anything.
        spoken = ((g != 0) & heard).sum(-1)
        # Neither do ratios whose denominators are off by a part of the lattice's spacing.
        columns = float(head.W.norm(dim=0).max())
        blurred = columns * factors.absolute / factors.sigma
        sharp = blurred <= LATTICE_DISTANCE / n * LATTICE_HEARD * d.abs().amax(-1)
        told = sharp & (spoken >= LATTICE_CHANNELS)
        return replace(estimate, misfit=torch.where(told, misfit, math.inf))

    def notices(self, factors: Factors) -> Tensor:
        """Return True: the counts of two samples, weighted by their scalars, lie on no lattice."""
        return torch.ones_like(factors.sigma, dtype=torch.bool)

    def log_likelihood(self, g: Tensor, seen: Blurred, tau: Tensor) -> Tensor:
        """Return the log likelihood (S,), with all numbers of active positions equally likely."""
        part = torch.arange(self.positions + 1, dtype=g.dtype, device=g.device) / self.positions
        found = []
        for t in tau:
            variance = seen.noise**2 + t.square() * seen.d_variance[:, None] * part.square()
            rest = g[:, None] - t * self.gain * seen.d[:, None] * part
            found.append(seen.density(rest, variance).logsumexp(-1).sum())
        return torch.stack(found)


def fit_lattice(name: str, head: Head, runs: Sequence[Probe]) -> list[Lattice]:
    """Return the lattice whose gain explains some probes, if their ratios lie near one at all."""
    gradient, positions = runs[0].share[name], runs[0].positions.get(name, 1)
    if not _is_bias(name, gradient, head) or len(gradient) != head.W.shape[1] or positions < 2:
        return []
    counts = torch.cat([positions * run.share[name].double() / run.d for run in runs])
    weight = torch.cat([run.d.abs() / run.d.abs().max() for run in runs])
    nearest = counts.round()
    heard = (weight > LATTICE_HEARD) & (nearest > 0)
    off = (counts - nearest)[heard]
    if not len(off) or float(off.abs().max()) > LATTICE_NEARBY:
        return []
    x, w = nearest[heard], weight[heard]
    gain = 1 + float((w * off * x).sum() / (w * x * x).sum())
    return [Lattice(name, positions, gain)]


PROBE_RUNS = 4  # the number of random inputs that the model is run on
PROBE_FITTED = 2  # how many of the runs coefficients are fitted to; the others check the fit
PROBE_UNCERTAIN = 0.01  # relative: a relation that knows the scalar less well is no evidence
PROBE_SEED = 0  # the seed of the random inputs and labels

# Each function fits relations of one kind to a parameter and the runs of a model, where they apply.
# A relation is a frozen dataclass with a field ``accuracy``. A new kind is a line here.
Fitter = Callable[[str, Head, Sequence[Probe]], Sequence[Relation]]
FITTERS: list[Fitter] = [fit_head_bias, fit_pointwise, fit_lattice]


def probe(
    model: nn.Module,
    input_shape: Layout | None = None,
    *,
    head: str | Head | None = None,
    seed: int = PROBE_SEED,
) -> tuple[Relation, ...]:
    """Return the relations that hold for this model, in its present mode (train or eval).

    Relations are facts of the architecture, so they can be computed once and be passed to
    ``recover_label`` as ``evidence=``.

    Args:
        model: the classifier.
        input_shape: the shape or specification of one input; by default the first usual one that
            it accepts.
        head: the name of its last linear layer, or a ``Head`` that the caller states.
        seed: the seed of the random inputs and labels.

    Returns:
        One relation for each parameter whose gradient determines the scalar ``τ``.

    Raises:
        HeadNotFound: if no linear layer does what the attacks assume.
        ModelError: if it is not known which input the model takes.
    """
    subject = Subject.of(model, input_shape, head=head)
    return _relations(subject, subject.expected_shape, seed)


def evidence_of(subject: Subject) -> tuple[Relation, ...]:
    """Return the relations that hold for a subject; none if its layers cannot be looked at."""
    if subject.input_shape is None or subject.head.each_token:
        return ()
    try:
        return _relations(subject, subject.input_shape, PROBE_SEED)
    except SoftleakError:
        raise
    except Exception:
        # The model's own code may raise anything, and a label can be recovered from the head alone.
        return ()


def evidence_for(subject: Subject, knowledge: Knowledge) -> tuple[Relation, ...]:
    """Return the relations an attack may use; none if it may see the head alone."""
    return () if knowledge.head_only else subject.once(evidence_of)


def _relations(subject: Subject, shape: Layout, seed: int) -> tuple[Relation, ...]:
    """Return the relations that hold for inputs of this shape."""
    head = subject.head
    runs = list(probe_runs(subject.model, head, shape, PROBE_RUNS, seed))
    # Some inputs may leave out a parameter, such as an expert's, which then has no gradient.
    always = [n for n in runs[0].share if all(n in run.share for run in runs)]
    tried = sorted(always, key=lambda name: name != head.bias_name)  # the head's own bias first
    found = []
    for name in tried:  # of each parameter the first relation that holds, if any does
        tries = (one for fit in FITTERS for one in fit(name, head, runs[:PROBE_FITTED]))
        checked = (_checked(relation, head, runs[PROBE_FITTED:]) for relation in tries)
        found += list(islice((one for one in checked if one is not None), 1))
    if len(subject.shapes) > 1:
        # The number of positions of a map follows from the size of the image. Where that size would
        # only be a guess, relations of parameters that make maps are not used.
        found = [relation for relation in found if relation.parameter not in runs[0].positions]
    return tuple(found)


def _checked(relation: Relation, head: Head, runs: Sequence[Probe]) -> Relation | None:
    """Return the relation with its accuracy, if it gives the true scalar of unseen probes."""
    factors = factor(head, [run.share for run in runs])
    g = torch.stack([run.share[relation.parameter] for run in runs]).double()
    true = (torch.stack([run.delta for run in runs]) * factors.u).sum(-1)
    estimate = relation.solve(g, head, factors)
    tolerance = PROBE_TOLERANCE * factors.relative
    off = (estimate.scalar - true).abs() / true.abs().clamp_min(SMALLEST_NORMAL)
    sure = estimate.error <= PROBE_UNCERTAIN * true.abs()
    holds = (off <= tolerance) & sure & (estimate.misfit <= tolerance)
    # A gradient of zeros says nothing either way, but at least one probe has to say something.
    silent = estimate.misfit.isinf()
    if bool(silent.all()) or not bool((holds | silent).all()):
        return None
    return replace(relation, accuracy=float(off[~silent].max()))  # type: ignore[type-var]
