"""The most probable label, or several, behind a share of one sample that carries noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from softleak.core.errors import LabelError
from softleak.core.families import AnyLabel, Binary, simplices_of
from softleak.core.head import Head
from softleak.core.knowledge import Knowledge
from softleak.core.loss import BinaryCrossEntropy
from softleak.core.results import Recovery, Status, Why, because
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.labels.composition import never_negative
from softleak.labels.curve import LARGEST
from softleak.labels.evidence.probes import evidence_for
from softleak.labels.evidence.relation import Blurred, NoisyRelation, log_laplace, log_normal
from softleak.labels.noisy.posterior import (
    GAUSSIAN_FLOOR,
    LogLikelihood,
    NoisyLogits,
    Points,
    Posterior,
    weigh,
)
from softleak.labels.noisy.spectrum import Signal, Spectrum, Typical, features_of_noise
from softleak.labels.solve import WIDEST

QUADRATURE_COARSE = 160  # points of the first grid for each sign, evenly spaced in the logarithm
QUADRATURE_PEAKS = 6  # the number of highest local maxima for each sign that are refined
QUADRATURE_ZOOMS = 13  # levels of zoom onto each of them
QUADRATURE_SECTION = 9  # points that a bracket is cut into at every level
QUADRATURE_NEGLIGIBLE = 40.0  # a peak whose logarithm is lower than the highest by it has no weight
QUADRATURE_LEVEL = 1e-6  # a peak is found once the logarithm varies by less across its bracket
QUADRATURE_NOTHING = 60.0  # a point of the first grid this much below the highest peak is left out
# Points on each side of a peak from which its width is estimated, evenly spaced in the logarithm of
# their distance from it, and the distance of the first and the last, relative to the peak's scalar.
QUADRATURE_SHELLS = 48
QUADRATURE_NEAREST = 1e-10
QUADRATURE_FARTHEST = 0.5
QUADRATURE_FINE = 61  # points across each peak
QUADRATURE_REACH = 7.0  # standard deviations that they span on each side


def quadrature(log: LogLikelihood, smallest: float, largest: float) -> tuple[Tensor, Tensor]:
    """Return nodes (S,) and widths (S,) to integrate over ``smallest ≤ |t| ≤ largest``."""
    steps = torch.linspace(0, 1, QUADRATURE_COARSE, dtype=torch.double)
    size = smallest * (largest / smallest) ** steps
    sides = [(sign * size, log(sign * size)) for sign in (1.0, -1.0)]
    ends = []  # of the grid cells around the highest local maxima
    for t, coarse in sides:
        padded = F.pad(coarse, (1, 1), value=-torch.inf)
        peak = ((coarse >= padded[:-2]) & (coarse >= padded[2:])).nonzero()[:, 0]
        peak = peak[coarse[peak].argsort(descending=True)[:QUADRATURE_PEAKS]]
        ends.append((t[(peak - 1).clamp_min(0)], t[(peak + 1).clamp_max(len(t) - 1)]))
    peaks, height = _zoomed(log, *map(torch.cat, zip(*ends, strict=True)))
    best = height.max()
    scalars, widths = [], []
    for t, coarse in sides:
        kept = (height > best - QUADRATURE_NEGLIGIBLE) & (peaks.sign() == t.sign()[0])
        near = [
            _across(log, float(peak), float(top), smallest, largest)
            for peak, top in zip(peaks[kept], height[kept], strict=True)
        ]
        ordered, order = torch.cat([size, *near]).sort()
        gaps = F.pad(ordered.diff(), (1, 1))
        above = coarse > best - QUADRATURE_NOTHING
        counts = F.pad(above, (0, len(ordered) - len(size)), value=True)[order]
        scalars.append(t.sign()[0] * ordered[counts])
        widths.append(((gaps[1:] + gaps[:-1]) / 2)[counts])
    return torch.cat(scalars), torch.cat(widths)


def _zoomed(log: LogLikelihood, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return the highest point (M,) of each bracket and its height (M,), by repeated zooming.

    A bracket is left as it is once its heights agree, or once they are so far below those of
    another that its peak has no weight: between points of a smooth peak the density rises by less
    than it does from the lowest of them to the highest.
    """
    last = QUADRATURE_SECTION - 1
    steps = torch.linspace(0, 1, QUADRATURE_SECTION, dtype=left.dtype)
    known = torch.tensor([0, last // 2, last])  # the ends of a bracket and the point between them
    new = torch.tensor([i for i in range(last + 1) if i not in known.tolist()])
    top = torch.full_like(left, -torch.inf)
    rows = torch.arange(len(left))
    heights = log(torch.lerp(left[:, None], right[:, None], steps[known]).flatten()).view(-1, 3)
    for _ in range(QUADRATURE_ZOOMS):
        t = torch.lerp(left[rows, None], right[rows, None], steps)
        height = torch.empty_like(t)
        height[:, known] = heights
        height[:, new] = log(t[:, new].flatten()).view(len(rows), -1)
        top[rows], best = height.max(1)
        each = torch.arange(len(rows))
        below, above = (best - 1).clamp_min(0), (best + 1).clamp_max(last)
        left[rows], right[rows] = t[each, below], t[each, above]
        # At an end of the bracket the next one is shorter, and its middle has not been seen.
        at_end = (above - below < 2).nonzero()[:, 0]
        heights = height[each[:, None], torch.stack([below, best, above], 1)]
        rise = top[rows] - height.amin(1)
        negligible = top[rows] + rise < top.max() - QUADRATURE_NEGLIGIBLE
        going = ~(negligible | (rise < QUADRATURE_LEVEL))
        at_end = at_end[going[at_end]]
        if len(at_end):
            heights[at_end, 1] = log((left[rows[at_end]] + right[rows[at_end]]) / 2)
        rows, heights = rows[going], heights[going]
        if not len(rows):
            break
    return (left + right) / 2, top


def _across(log: LogLikelihood, peak: float, top: float, smallest: float, largest: float) -> Tensor:
    """Return sizes of scalars that lie evenly across one peak, as wide as the peak is."""
    size, sign = abs(peak), 1.0 if peak > 0 else -1.0
    ratio = QUADRATURE_FARTHEST / QUADRATURE_NEAREST
    shells = torch.logspace(0, 1, QUADRATURE_SHELLS, base=ratio, dtype=torch.double)
    shells = shells * QUADRATURE_NEAREST
    t = (size * torch.cat([1 - shells.flip(0), torch.ones(1), 1 + shells])).clamp(smallest, largest)
    density = (log(sign * t) - top).exp()
    spread = torch.trapezoid(density * (t - size).square(), t) / torch.trapezoid(density, t)
    width = QUADRATURE_REACH * float(spread.clamp_min(0).sqrt())
    points = torch.linspace(size - width, size + width, QUADRATURE_FINE, dtype=t.dtype)
    return points.clamp(smallest, largest)


DRAWN_LIGHT = 1e-9  # a draw with less than this part of the heaviest weight is left out
DRAWN_ROUNDED = 1e-9  # what adding up weights may leave of a sum of one


@dataclass(frozen=True, eq=False)
class Draws:
    """R labels (R, C), their scalars τ, sizes |t| and weights, which sum to one.

    The last three have the shape (R,), or (R, M) if every label was drawn with M scalars. ``plain``
    (R,) tells which labels are on the faces of their simplices: they are not smoothed.
    """

    labels: Tensor
    tau: Tensor
    size: Tensor
    weight: Tensor
    plain: Tensor

    @property
    def label_weight(self) -> Tensor:
        """Return the weight (R,) of each label, whatever its scalar."""
        return self.weight.flatten(1).sum(1) if self.weight.ndim > 1 else self.weight

    @classmethod
    def of(cls, posterior: Posterior, points: Points, tau: Tensor, width: Tensor) -> Draws:
        """Collect every label of a quadrature with nodes τ (S,) and widths (S,) that has weight."""
        log = points.log + width.log()[:, None, None]
        weight = (log - log.max()).exp()
        s, p, k = (weight > DRAWN_LIGHT).nonzero(as_tuple=True)
        simplices, kept = posterior.simplices, weight[s, p, k]
        own = p % len(simplices.corners)  # faces follow the simplices that they belong to
        mixed = (points.weights[s, p, k][:, None] @ simplices.directions.to(tau)[own])[:, 0]
        labels = (simplices.origin.to(tau)[own] + mixed).clamp_min(0.0)
        plain = p >= len(simplices.corners)
        return cls(labels, tau[s], points.size[s, p, k], kept / kept.sum(), plain)

    def kinds(self, least: float) -> list[Draws]:
        """Return smoothed and unsmoothed labels apart: a client's habit is no chance."""
        parts = (self.plain, ~self.plain)
        return [self.some(part) for part in parts if float(self.label_weight[part].sum()) >= least]

    def some(self, mine: Tensor) -> Draws:
        """Return some of the draws (R,), with weights that sum to one again."""
        some = {name: values[mine] for name, values in vars(self).items()}
        return Draws(**some | {"weight": some["weight"] / some["weight"].sum()})

    def classes(self) -> Tensor:
        """Return the probability (C,) of each class to lead the label."""
        zero = self.labels.new_zeros(self.labels.shape[1])
        return zero.index_add(0, self.labels.argmax(-1), self.label_weight)

    def quantile(self, values: Tensor, level: float) -> Tensor:
        """Return the weighted quantile of ``values``: one for each label, or for each scalar."""
        weight = self.weight if values.shape == self.weight.shape else self.label_weight
        ordered, order = values.flatten().sort()
        reached = weight.flatten()[order].cumsum(0)
        return ordered[(reached < level).sum().clamp_max(len(ordered) - 1)]

    def interval(self, mass: float) -> Tensor:
        """Return an interval (2, C) that holds each entry with this probability."""
        each = torch.stack([kind.shortest_interval(mass) for kind in self.kinds(1 - mass)])
        return torch.stack([each[:, 0].amin(0), each[:, 1].amax(0)])

    def shortest_interval(self, mass: float) -> Tensor:
        """Return the shortest interval (2, C) of each entry; it reaches an end that is near."""
        values, order = self.labels.T.contiguous().sort(-1)
        weight = self.label_weight[order]
        reached = weight.cumsum(-1)
        before = reached - weight
        last = torch.searchsorted(reached, before + mass * (1 - DRAWN_ROUNDED))
        last = last.clamp_max(values.shape[-1] - 1)
        width = values.gather(-1, last) - values
        whole = before + mass <= 1 + DRAWN_ROUNDED
        start = width.masked_fill(~whole, torch.inf).argmin(-1, keepdim=True)
        low, high = (values.gather(-1, at)[:, 0] for at in (start, last.gather(-1, start)))
        reach = (high - low).clamp_min(DRAWN_ROUNDED)
        low = torch.where(low <= reach, 0.0, low)
        return torch.stack([low, torch.where(1 - high <= reach, 1.0, high)])


PRIOR_SAMPLING_LABELS = 64  # labels drawn in each simplex
# Up to this many probabilities every label meets all the noise. With more, labels without weight
# are left out first, and each of the others meets as much of the noise as this number allows.
PRIOR_SAMPLING_ENTRIES = 2**23
PRIOR_SAMPLING_GLANCE = 8  # draws of the noise that a label meets before it may be left out
PRIOR_SAMPLING_NEGLIGIBLE = 30.0  # a label this much below the highest logarithm is left out
# A label's highest logarithm may be too low by this many times its distance from their median,
PRIOR_SAMPLING_SWING = 2.0
PRIOR_SAMPLING_WIDEST = 100.0  # and by no more than this


def draw_from_prior(posterior: Posterior) -> Draws:
    """Return labels drawn from the prior, weighted; ``ArithmeticError`` if none has any."""
    labels, plain = draw_labels(posterior)
    noise = NoisyLogits.of(posterior, 0)
    each = len(noise.lengths)
    if labels.numel() * each > PRIOR_SAMPLING_ENTRIES:
        log = weigh(posterior, labels, noise, PRIOR_SAMPLING_GLANCE)[0]
        highest = log.amax(-1)
        swing = PRIOR_SAMPLING_SWING * (highest - log.median(-1).values).nan_to_num(nan=0.0)
        reach = highest + swing.clamp_max(PRIOR_SAMPLING_WIDEST)
        some = reach >= highest.max() - PRIOR_SAMPLING_NEGLIGIBLE  # which may have weight
        labels, plain = labels[some], plain[some]
        each = max(min(PRIOR_SAMPLING_ENTRIES // labels.numel(), each), PRIOR_SAMPLING_GLANCE)
    log, tau, size = weigh(posterior, labels, noise, each)
    if not bool(log.isfinite().any()):
        raise ArithmeticError("no label drawn from the prior explains the gradient")
    weight = (log - log.max()).exp()
    return Draws(labels, tau, size, weight / weight.sum(), plain)


def draw_labels(posterior: Posterior) -> tuple[Tensor, Tensor]:
    """Return labels (R, C) drawn from the family's prior, equally many from every simplex."""
    simplices = posterior.simplices
    generator = torch.Generator().manual_seed(0)
    count, each = len(simplices.origin), PRIOR_SAMPLING_LABELS
    whole = simplices.concentration.int().tolist()
    blank = [torch.empty(alpha, count * each, dtype=torch.double) for alpha in whole]
    parts = [one.exponential_(generator=generator).sum(0) for one in blank]
    weights = torch.stack(parts, -1).view(count, each, -1)
    plain = torch.zeros(count, each, dtype=torch.bool)
    plain[:, ::2] = simplices.faced  # as probable as the rest
    weights[..., -1] *= ~plain
    weights = weights / weights.sum(-1, keepdim=True)
    labels = (weights @ simplices.corners).flatten(0, 1).to(posterior.b)
    return labels, plain.flatten().to(labels.device)


ANSWER_SURE = 0.9  # a class that is less probable than this is a guess
ANSWER_HELD = 0.9  # the probability with which an interval holds the entry it belongs to
ANSWER_UNFIT = 1e-6  # a family does not fit if a misfit as large as the one seen is less probable


def answer(posterior: Posterior, draws: Draws, spectrum: Spectrum) -> Recovery:
    """Return the recovery that the draws of a posterior amount to."""
    signal = posterior.signal
    probable = draws.classes()
    index = int(probable.argmax())
    confidence = min(float(probable[index]), 1.0)
    mine = draws.some(draws.labels.argmax(-1) == index)
    label = mine.label_weight @ mine.labels
    label = label / label.sum()
    tau = float(mine.quantile(mine.tau, 0.5))
    size = float(mine.quantile(mine.size, 0.5))
    interval = draws.interval(ANSWER_HELD)
    far = (
        float(kind.quantile((kind.labels - label).abs().sum(-1), ANSWER_HELD))
        for kind in draws.kinds(1 - ANSWER_HELD)
    )
    # How far the label is from itself without the entries that may well be zero.
    edge = torch.where(interval[0] == 0, 0.0, label)
    edge = edge / edge.sum() if bool(edge.any()) else label
    error = max(*far, float((edge - label).abs().sum()))
    spread = float((mine.weight * (mine.tau / tau - 1).square()).sum())
    blur = signal.x_variance * len(signal.x) / signal.sigma**2
    return Recovery(
        Status.PROBABLE if spectrum.even and confidence >= ANSWER_SURE else Status.GUESS,
        _message(spectrum, index, confidence), label=label, feature=signal.x / tau,
        scalar=size if tau > 0 else -size, error=error if spectrum.even else math.inf,
        feature_error=(spread + blur) ** 0.5, scale=abs(tau) / size, noise=spectrum.noise,
        confidence=confidence if spectrum.even else None,
        interval=interval if spectrum.even else None,
    )  # fmt: skip


def fits(posterior: Posterior, points: Points) -> bool:
    """Return whether noise explains how far the best label is from the family.

    The squared misfit has a χ² distribution with as many degrees of freedom as there are equations
    beyond the unknowns. Without any such equation some member of the family's plane always agrees
    with the gradient. It has to be a label then, to within the noise of as many equations as there
    are.
    """
    if not points.log.isfinite().any():
        return False
    label = int(points.log.argmax())
    misfit = points.misfit.flatten()[label // points.log.shape[-1]]
    equations = len(posterior.b) - 2
    freedom = equations - points.weights.shape[-1] - int(posterior.scale_unknown)
    if freedom < 1:
        misfit, freedom = misfit + points.inside.flatten()[label], max(equations, 1)
    half = misfit.new_tensor(freedom / 2)
    return bool(torch.special.gammaincc(half, misfit / 2) > ANSWER_UNFIT)


def _message(spectrum: Spectrum, index: int, confidence: float) -> str:
    """Say how much noise was found, which class is the most probable, and how probable it is."""
    found = f"noise of standard deviation {spectrum.noise:.2g} on the head's gradient"
    if not spectrum.even:
        return (
            f"what one sample cannot explain ({found}) is not independent noise of equal size: the "
            f"share was pruned, rounded or altered otherwise; class {index} is a guess, and its "
            "probability is not known"
        )
    sure = "most probable" if confidence >= ANSWER_SURE else "a guess"
    return f"{found}; class {index} is {sure}, with a probability of {confidence:.3g}"


BEHIND_NOISE_SMALLEST_T = 1e-4  # a smaller |t| changes no label by as much as noise does
BEHIND_NOISE_KNOWN = 0.95  # squared length of the mean of ``u`` whose neighbourhood is Gaussian
BEHIND_NOISE_KNOWN_SCALED = 0.999  # the same if |t| is unknown too: it hides in the noise of ``p``
BEHIND_NOISE_LABELS = 32  # draws of labels at every scalar
BEHIND_NOISE_EVERY = 12  # the number of classes up to which all of them may be in the label
BEHIND_NOISE_LEADING = 4  # with more, as many are taken from each of the orders that suggest one
BEHIND_NOISE_DEEPEST = 1e-2  # of the logits: the smallest |τ| of an unknown scale, if all is open
BEHIND_NOISE_FLATTEST = 1e4  # the largest |τ| likewise
BEHIND_NOISE_WIDTHS = 8.0  # standard deviations of the typical length that such a τ may be off


def recover_noisy(
    subject: Subject, knowledge: Knowledge, share: GradientShare, G: Tensor, spectrum: Spectrum
) -> Recovery:
    """Recover the most probable label behind a noisy head gradient ``G`` (C, I), never a proof."""
    typical = subject.once(Typical.of)
    signal = Signal.of(subject.head, *spectrum.light(G, typical.direction), typical)
    if signal.sigma == 0:
        return Recovery(
            Status.NO_SOLUTION,
            "all rows of the head's gradient are alike, which is noise alone: nothing of a sample "
            "is in it",
            noise=spectrum.noise,
        )
    # Other layers depend on ``Wᵀu``. Where ``u`` is hardly known they say nothing.
    known = signal.known >= BEHIND_NOISE_KNOWN
    told = evidence_behind(subject, knowledge, share, signal, spectrum) if known else ()
    evidence = tuple(piece for _, piece in told)
    families = [knowledge.family] if knowledge.family else [WIDEST, *[AnyLabel()] * bool(evidence)]
    noise = f"noise of standard deviation {spectrum.noise:.2g} on the head's gradient"
    likely = set(range(len(signal.u)))  # classes that may be in the label
    if len(likely) > BEHIND_NOISE_EVERY:
        parts = (signal.u, -signal.u, -signal.a, signal.a)
        likely = set(torch.cat([p.argsort()[:BEHIND_NOISE_LEADING] for p in parts]).tolist())
    for family in families:
        try:
            simplices = simplices_of(family, len(signal.u), sorted(likely))
        except LabelError as error:
            why = f"behind which a label needs a probability, and none is computed: {error}"
            return Recovery(Status.GUESS, f"{noise}, {why}", noise=spectrum.noise)
        b, scaled = subject.head.b, knowledge.scale_unknown
        found = _answer(Posterior(signal, b, simplices, scaled, typical, evidence), spectrum)
        if found is not None:
            return found
    why = f"does not explain how far every label of the family {families[-1]} is from it"
    return Recovery(Status.NO_SOLUTION, f"{noise} {why}", noise=spectrum.noise)


def _answer(posterior: Posterior, spectrum: Spectrum) -> Recovery | None:
    """Integrate the posterior of one family; return None if the family does not fit."""
    scaled = posterior.scale_unknown
    enough = BEHIND_NOISE_KNOWN_SCALED if scaled else BEHIND_NOISE_KNOWN
    if posterior.signal.known < enough and posterior.typical.doubt < math.inf:
        return answer(posterior, draw_from_prior(posterior), spectrum)
    tau, width = quadrature(posterior.density, *_bounds(posterior))
    points = posterior.at(tau, BEHIND_NOISE_LABELS)
    if fits(posterior, points) or (not spectrum.even and bool(points.log.isfinite().any())):
        return answer(posterior, Draws.of(posterior, points, tau, width), spectrum)
    return None


def evidence_behind(
    subject: Subject, knowledge: Knowledge, share: GradientShare, signal: Signal, spectrum: Spectrum
) -> Iterator[tuple[str, LogLikelihood]]:
    """Yield parameter and log likelihood of relations that have one and whose gradient was sent."""
    W = subject.head.W.double()
    seen = Blurred(
        signal.u, signal.u_covariance.diagonal(),
        W.T @ signal.u, (W * (signal.u_covariance @ W)).sum(0).clamp_min(0.0),
        signal.x, torch.full_like(signal.x, signal.x_variance), spectrum.noise,
        log_laplace if spectrum.heavy else log_normal,
    )  # fmt: skip
    for relation in evidence_for(subject, knowledge):
        if relation.parameter in share and isinstance(relation, NoisyRelation):
            g = share[relation.parameter].to(W)
            yield relation.parameter, partial(relation.log_likelihood, g, seen)


def _bounds(posterior: Posterior) -> tuple[float, float]:
    """Return the smallest and the largest |τ| to look at."""
    if not posterior.scale_unknown:
        return BEHIND_NOISE_SMALLEST_T, LARGEST
    typical, signal = posterior.typical, posterior.signal
    if typical.doubt < math.inf and signal.along > 0:
        middle = signal.along / math.exp(typical.length)
        reach = math.exp(BEHIND_NOISE_WIDTHS * typical.doubt)
        return middle / reach, middle * reach
    size = float(signal.a.abs().max()) or 1.0  # With a head of zeros every τ says the same.
    return BEHIND_NOISE_DEEPEST * size, BEHIND_NOISE_FLATTEST * size


# How probable each of several labels is behind noise:
#
#     δ/t = u + noise of u        g = δ + s ε        δ = residual((a + ω)/t + b, y)
#
# Given the scalar ``t``, which is integrated over, entries are independent, up to what the noise
# ``ω`` of the logits has in common; each label is there or not, smoothed like all others, at a rate
# that is integrated over as well.
SCALARS, ZOOMS, NODES = 96, 3, 15  # of the grids of τ, and of the error of a logit
NEGLIGIBLE = 20.0  # of the log density, below its highest
SMOOTHINGS = (0.0, 0.02, 0.05, 0.1, 0.2)  # of which none is as probable as all others
RATES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7)  # of labels that are present
DRAWS = 1000
Density = Callable[[Tensor], tuple[Tensor, Tensor]]  # of scalars: log densities, probabilities


@dataclass(frozen=True, eq=False)
class Tags:
    """The posterior of several labels of one sample, as a function of τ.

    Where the signal stands out of the noise, that is ``τ = t`` of its factors. Where it does not,
    only the usual direction ``f`` of features counts, with ``G f = ℓ δ + s ε`` and ``τ = 1/ℓ``.
    """

    head: Head
    loss: BinaryCrossEntropy
    x: Tensor  # (I,) the feature at τ = 1
    u: Tensor  # (C,) the residual at τ = 1, and ``variance`` (C,) that of its entries
    variance: Tensor
    spread: Tensor  # (C,) the standard deviation of each logit at τ = 1
    along: float  # the length of ``x`` in the usual direction
    clear: bool  # whether the signal stands out
    bias: Tensor | None  # (C,) the gradient of the head's bias
    noise: float
    smoothings: Tensor  # (E,)

    @classmethod
    def of(
        cls, head: Head, loss: BinaryCrossEntropy, G: Tensor, bias: Tensor | None, noise: float,
        typical: Typical, signal: Signal, hard: bool, reach: float,
    ) -> Tags | None:  # fmt: skip
        """Return the posterior behind a gradient; None where no direction of features is known."""
        smoothings = torch.tensor((0.0,) if hard else SMOOTHINGS).to(G)
        if signal.known >= BEHIND_NOISE_KNOWN:
            variance = signal.u_covariance.diagonal().clamp_min(GAUSSIAN_FLOOR)
            spread = signal.a_root.norm(dim=1)
            told = signal.x, signal.u, variance, spread, max(signal.along, noise), True
            return cls(head, loss, *told, bias, noise, smoothings)
        usual, rows, inputs = typical.direction, head.W.double().norm(dim=1), G.shape[1]
        sent = G @ usual
        across, blur = typical.across, noise**2
        if math.isinf(typical.doubt):  # then the bias alone tells something, at logits of any sign
            if bias is None:
                return None
            usual, across, blur = 0 * usual, reach, math.inf
        spread = across / inputs**0.5 * rows
        told = usual, sent, torch.full_like(spread, blur), spread, 1.0, False
        return cls(head, loss, *told, bias, noise, smoothings)

    def states(self, tau: Tensor) -> tuple[Tensor, Tensor]:
        """Return log densities (S, E, Q) and the probability (S, E, Q, C) that a label is there."""
        nodes, weights = (
            torch.from_numpy(one) for one in np.polynomial.hermite_e.hermegauss(NODES)
        )
        a = self.head.logits(self.x[None]) + nodes[:, None] * self.spread  # (H, C)
        z = (a / tau[:, None, None] + self.head.b)[:, None]  # (S, 1, H, C)
        e = self.smoothings[:, None, None]
        t = tau[:, None, None, None]
        present, absent = (self._log(z, y, t, weights.log()) for y in (1 - e, e))
        rate = torch.tensor(RATES).to(tau)[:, None]
        present, absent = present[:, :, None] + rate.log(), absent[:, :, None] + (1 - rate).log()
        either = torch.logaddexp(present, absent)
        return either.sum(-1), (present - either).exp()

    def _log(self, z: Tensor, y: Tensor, tau: Tensor, weights: Tensor) -> Tensor:
        """Return the log likelihood (S, E, C) of every entry being ``y``."""
        delta = self.loss.residual(z, y)
        log = -(self.u - delta / tau).square() / (2 * self.variance) + weights[:, None]
        if self.bias is not None:
            log = log - (self.bias - delta).square() / (2 * self.noise**2)
        return log.logsumexp(2)


def recover_tags(
    subject: Subject, knowledge: Knowledge, share: GradientShare, loss: BinaryCrossEntropy
) -> Recovery | None:
    """Return how probable each label of one sample is; None if no noise is beside it."""
    head, G = subject.head, share[subject.head.weight_name].to(subject.head.W.device).double()
    spectrum = Spectrum.of(G, balanced=False)
    if spectrum.samples > 1 or not spectrum.even or min(G.shape) < 2:
        return None
    if knowledge.of(share).scale == "unknown":
        why = because(Why.NOISE_AT_ANY_SCALE, noise=spectrum.noise)
        return Recovery(Status.GUESS, why, noise=spectrum.noise, loss=loss)
    typical = subject.once(Typical.of)
    signal = Signal.of(head, G, spectrum.noise, typical, balanced=False)
    told = head.has_bias and head.bias_name in share and not knowledge.head_only
    bias = share[head.bias_name].to(G) if told else None
    hard = isinstance(knowledge.family, Binary)
    features = subject.once(features_of_noise)
    reach = float(features.norm(dim=1).mean()) if len(features) else G.shape[1] ** 0.5
    tags = Tags.of(head, loss, G, bias, spectrum.noise, typical, signal, hard, reach)
    if tags is None:
        why = because(Why.TAGS_HIDDEN, noise=spectrum.noise)
        return Recovery(Status.GUESS, why, noise=spectrum.noise, loss=loss)
    others = evidence_behind(subject, knowledge, share, signal, spectrum)
    used = tags.clear and not knowledge.head_only
    pieces = [one for name, one in (others if used else ()) if name != head.bias_name]
    prior_e = torch.tensor([0.0] if hard else [math.log(0.5)] + [math.log(0.125)] * 4).to(G)

    def density(tau: Tensor) -> tuple[Tensor, Tensor]:
        log, present = tags.states(tau)
        prior = typical.log_prior(tau.new_tensor(tags.along), spectrum.noise * tags.clear, tau)
        for piece in pieces:
            prior = prior + piece(tau)
        return log + prior[:, None, None] + prior_e[:, None], present

    most = loss.slope(len(G)) * len(G) ** 0.5
    ends = (BEHIND_NOISE_SMALLEST_T * most, 2 * most)
    if not tags.clear:
        widest = 2.0 if math.isinf(typical.doubt) else math.exp(BEHIND_NOISE_WIDTHS * typical.doubt)
        ends = (math.exp(-typical.length) / widest, math.exp(-typical.length) * widest)
    one_sign = subject.once(never_negative) or not tags.clear
    signs = (1.0,) if one_sign else (1.0, -1.0)
    parts = [_integrated(density, sign, ends, G) for sign in signs]
    log, present, tau = (torch.cat(one) for one in zip(*parts, strict=True))
    return _answer_of_tags(tags, log, present, tau)


def _integrated(
    density: Density, sign: float, ends: tuple[float, float], like: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log masses, probabilities and scalars of one sign, on a grid around what has mass."""
    low, high = (math.log(one) for one in ends)
    for _ in range(ZOOMS):
        steps = torch.linspace(low, high, SCALARS, dtype=torch.double).to(like)
        log, present = density(sign * steps.exp())
        top = log.flatten(1).amax(1)
        some = (top > top.max() - NEGLIGIBLE).nonzero()[:, 0]
        first, last = max(int(some[0]) - 1, 0), min(int(some[-1]) + 1, SCALARS - 1)
        low, high = float(steps[first]), float(steps[last])
    return log + math.log(float(steps[1] - steps[0])), present, sign * steps.exp()


def _answer_of_tags(tags: Tags, log: Tensor, present: Tensor, tau: Tensor) -> Recovery:
    """Return what the posterior amounts to: the likeliest labels, and how probable each is."""
    smoothings, noise = tags.smoothings, tags.noise
    weight = (log - log.max()).exp()
    weight = weight / weight.sum()
    probable = (weight[..., None] * present).flatten(0, 2).sum(0)
    has = probable > 0.5
    e = smoothings[int(weight.sum((0, 2)).argmax())]
    label = torch.where(has, 1 - e, e).to(probable)
    named = torch.where(has, present, 1 - present).log().sum(-1).exp()
    confidence = min(float((weight * named).sum()), 1.0)
    generator = torch.Generator().manual_seed(0)
    which = torch.multinomial(weight.flatten().cpu(), DRAWS, replacement=True, generator=generator)
    chance = torch.rand(DRAWS, len(label), generator=generator, dtype=torch.double).to(label)
    drawn = present.flatten(0, 2)[which.to(label.device)] > chance
    own = smoothings[(which // len(RATES)) % len(smoothings)].to(label)[:, None]
    far = (torch.where(drawn, 1 - own, own) - label).abs().sum(1)
    sure = torch.stack([probable >= ANSWER_HELD, probable <= 1 - ANSWER_HELD])
    spread = smoothings[weight.sum((0, 2)) > 1 - ANSWER_HELD]
    low, high = (float(spread.min()), float(spread.max())) if len(spread) else (0.0, 0.2)
    least = torch.where(sure[0], 1 - high, low)
    interval = torch.stack([least, torch.where(sure[1], high, 1 - low)])
    middle = float(tau[int(weight.sum((1, 2)).argmax())])
    claims = bool((probable >= ANSWER_SURE).any()) or confidence >= ANSWER_SURE
    return Recovery(
        Status.PROBABLE if claims else Status.GUESS,
        because(Why.TAGS_BEHIND_NOISE, noise=noise, confidence=confidence), label=label,
        feature=tags.x / middle, scalar=middle, error=float(far.quantile(ANSWER_HELD)),
        noise=noise, confidence=confidence, interval=interval, presence=probable, loss=tags.loss,
    )  # fmt: skip
