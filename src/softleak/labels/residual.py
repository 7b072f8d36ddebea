"""What the head's gradients say of one sample before any loss is assumed, and what each loss reads.

The head's gradients of one sample are ``G = δ xᵀ`` and ``g = δ``, whatever the loss. Where ``δ`` is
known (from the head's bias, or from evidence of other layers), so is the feature, and with the
weights the logits ``z``. Then each loss means one label, ``y = predict(z) − δ/f``. A loss, a sign
and a factor hold if that is a label of a simple kind. Chance does not make it one, since all
classes have to agree on one factor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from torch import Tensor

from softleak.core.client import SgdSteps
from softleak.core.factors import Factors, factor
from softleak.core.families import Binary, Family, SmoothedBinary
from softleak.core.head import Head
from softleak.core.knowledge import Knowledge
from softleak.core.loss import BinaryCrossEntropy, CrossEntropy, Loss, MeanSquaredError
from softleak.core.results import Candidate, Recovery, Status
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.labels.certify import DOUBT_SPARE_BITS
from softleak.labels.composition import never_negative
from softleak.labels.curve import (
    CACHED_ENTRIES,
    PSEUDO_LABEL_LOGIT_ROUNDINGS,
    PSEUDO_LABEL_SMALLEST_SCALAR,
    Interval,
)
from softleak.labels.evidence.relation import Estimate
from softleak.labels.search import Minima, search

LOGIT_ROUNDINGS = 16.0  # of the largest term of a logit
FITS = 6.0  # errors, root mean square over the classes: a label this near to its kind is one
SMOOTHED_LEAST = 3  # outputs from which the amount of smoothing can be told
SHARP = 2.0**-18  # the error of a label that chance does not bring to zero or one
FEWEST = 2  # equations beyond the unknowns, for a kind of label to be more than chance
SAME_FACTOR = 1e-3  # relative: a factor this close to one is one
MOST_SMOOTHED = 0.9  # the largest part of a label that smoothing may take
CHANCE = 0.05  # of the largest residual: an error above it lets any label fit
NOT_A_LABEL = 1e30  # the misfit where no positive factor fits; a search needs finite numbers
TEMPERATURES, HOTTEST = 41, 32.0  # how many are tried, and the largest
LOSSES_TRIED: tuple[Loss, ...] = (
    CrossEntropy(), BinaryCrossEntropy(), BinaryCrossEntropy(reduction="sum"),
    MeanSquaredError(), MeanSquaredError(reduction="sum"),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Residual:
    """What the head's gradients say of one sample before any loss is assumed.

    Attributes:
        t: the scalar of ``δ = t u``.
        delta: ``δ`` (C,), the gradient at the logits, up to the share's factor.
        feature: ``x`` (I,), exact whatever that factor is.
        z: the logits (C,).
        z_error: the error of each logit.
        relative: the relative error of ``δ``.
        absolute: the absolute error of an entry of ``δ``.
        has_bias: whether the logits have a bias that a step moves.
    """

    t: float
    delta: Tensor
    feature: Tensor
    z: Tensor
    z_error: Tensor
    relative: float
    absolute: float
    has_bias: bool = False

    @classmethod
    def of(
        cls, head: Head, share: GradientShare, factors: Factors, verdict: Estimate
    ) -> Residual | None:
        """Return the residual of a share of one sample; None where nothing tells its size."""
        if not bool(factors.rank_one & ~factors.zero):
            return None
        if not bool(verdict.decided) or verdict.unsigned(0):
            return None
        t = float(verdict.scalar)
        unsure = float(verdict.error) / abs(t) + factors.feature_error(0)
        delta = t * factors.u[0]
        if head.has_bias and head.bias_name in share:
            sent = share[head.bias_name].to(delta)
            if float((sent - delta).norm()) <= 4 * unsure * float(delta.norm()):
                delta = sent  # which has the rounding of each entry, and not that of all
        x = factors.sigma[0] / t * factors.v[0]
        z = head.logits(x[None])[0] + head.b
        terms = head.W.abs().double() @ x.abs() + head.b.abs()
        z_error = (LOGIT_ROUNDINGS * factors.relative + unsure) * terms
        absolute = float(factors.absolute[0] / factors.sigma[0]) * abs(t)
        return cls(t, delta, x, z, z_error, unsure, absolute, head.has_bias)

    def tempered(self, temperature: float) -> Residual:
        """Return the residual of a loss that divides the logits by a temperature."""
        z, error = self.z / temperature, self.z_error / temperature
        return replace(self, z=z, z_error=error)

    def errors(self, loss: Loss, factor: float) -> Tensor:
        """Return the error (C,) of the label that a loss means at a factor of ``δ``."""
        z, step, delta = self.z, self.z_error, factor * self.delta
        off = abs(factor) * (self.relative * self.delta.abs() + self.absolute)
        moved = (loss.label(z + step, delta) - loss.label(z - step, delta)).abs() / 2
        other = (loss.label(z, delta + off) - loss.label(z, delta - off)).abs() / 2
        resolution = 4 * torch.finfo(torch.float32).eps * self.relative
        return moved + other + resolution


@dataclass(frozen=True, eq=False)
class LossReading:
    """A loss, a sign and a factor at which a residual means a label of a simple kind.

    Attributes:
        loss: the loss.
        factor: what ``δ`` is multiplied by; negative where before and after are swapped.
        label: the label (C,).
        error: a bound of the label's error in L1.
        misfit: how far the label is from its kind, in errors.
        spare: equations beyond the unknowns.
    """

    loss: Loss
    factor: float
    label: Tensor
    error: float
    misfit: float
    spare: int


def simple_readings(seen: Residual, stated: Loss | None = None) -> Iterator[LossReading]:
    """Yield every reading of a residual as a label of a simple kind, the plainest first."""
    tried = LOSSES_TRIED if stated is None else (stated, *LOSSES_TRIED)
    for given, sign, loss in product((True, False), (1.0, -1.0), tried):
        if len(seen.z) == 1 and loss.balanced:
            continue  # a softmax of one output is one
        if given or loss.reduction == "mean":
            found = _read(seen, loss, sign, _kind(seen, loss, sign, given), given)
            if found is not None:
                yield found


def _kind(seen: Residual, loss: Loss, sign: float, given: bool) -> Tensor:
    """Return the label (C,) of zeros and ones that a residual may mean."""
    delta = sign * seen.delta
    if isinstance(loss, BinaryCrossEntropy):
        return (delta < 0).double()
    far = -delta
    if isinstance(loss, MeanSquaredError):  # the class that is off the line of all others
        slope = delta / loss.slope(len(delta))
        s = 1.0 if given else float((slope @ seen.z) / (slope @ slope))
        far = (seen.z - s * slope).abs()
    return F.one_hot(far.argmax(), len(delta)).double()


def _read(seen: Residual, loss: Loss, sign: float, kind: Tensor, given: bool) -> LossReading | None:
    """Return the reading of one kind, if the residual fits it and chance would not."""
    found = _nearest(seen, loss, sign, kind, given)
    if found is None or not found.misfit <= FITS:
        return None
    s = abs(found.factor)
    errors = seen.errors(loss, s)
    if found.spare < FEWEST:  # then one equation has to be sharp
        tested = found.spare > 0 and given and float(errors.max()) < SHARP
        return None if not tested or _by_chance(seen, loss, s, errors) else found
    return None if _by_chance(seen, loss, s, errors) else found


def _nearest(
    seen: Residual, loss: Loss, sign: float, kind: Tensor, given: bool
) -> LossReading | None:
    """Return the reading nearest to one kind: at the factor ``given`` by the loss, or at any.

    With ``y = (1 − e) kind + e/n`` (n is 1 for each entry by itself, and C on the simplex; 1/2 of a
    binary one) the conditions are linear in the factor ``s`` and the smoothing ``e``.
    """
    predicted, outputs = loss.predict(seen.z), len(seen.z)
    slope = seen.delta * sign / loss.slope(outputs)
    error = seen.errors(loss, 1.0)
    even = loss.flat(outputs) if outputs >= SMOOTHED_LEAST else 0.0
    columns = [] if given else [slope]
    columns += [even - kind] if even else []
    weighted = (predicted - kind - (slope if given else 0.0)) / error
    solved, left = torch.zeros(0), weighted
    if columns:
        A = torch.stack(columns, 1) / error[:, None]
        solved = torch.linalg.lstsq(A, weighted[:, None], driver="gelsd").solution[:, 0]
        left = weighted - A @ solved
    s = 1.0 if given else float(solved[0])
    e = float(solved[-1]) if even else 0.0
    if not s > 0.0 or not -SAME_FACTOR < e < MOST_SMOOTHED:
        return None
    scaled = error if given else seen.errors(loss, s)
    misfit = float((left * error / scaled).square().mean().sqrt())
    spare = outputs - len(columns) - (1 if loss.balanced else 0)
    label = (1 - e) * kind + e * even
    return LossReading(loss, sign * s, label, float(scaled.sum()), misfit, spare)


def at_temperature(seen: Residual) -> tuple[float, LossReading] | None:
    """Return a temperature other than one at which a residual means a label of one class."""
    loss = CrossEntropy()

    def reading(log_t: float) -> LossReading | None:
        warm = seen.tempered(math.exp(log_t))
        return _nearest(warm, loss, 1.0, _kind(warm, loss, 1.0, False), False)

    def left(log_t: float) -> float:
        found = reading(log_t)
        return NOT_A_LABEL if found is None else found.misfit

    tried = torch.linspace(-1.0, 1.0, TEMPERATURES).mul(math.log(HOTTEST)).tolist()
    values = [left(one) for one in tried]
    best = min(range(len(tried)), key=values.__getitem__)
    if best in (0, len(tried) - 1) or len(seen.z) <= FEWEST + 4:
        return None
    ends = (tried[best - 1], tried[best + 1])
    at = minimize_scalar(left, bounds=ends, method="bounded", options={"xatol": 1e-12}).x
    found, warm = reading(float(at)), math.exp(float(at))
    if found is None or found.misfit > FITS or abs(warm - 1) <= 10 * SAME_FACTOR:
        return None
    return warm, found


def _by_chance(seen: Residual, loss: Loss, s: float, error: Tensor) -> bool:
    """Return whether the residual is so small that any label is within its error."""
    moved = s / loss.slope(len(seen.z)) * seen.delta.abs()
    return float(error.max()) > CHANCE * float(moved.max())


# One sample's label, entry by entry, where nothing tells the residual: one scalar again.
#
#     δ = t u        x = (σ/t) v        ŷ(t) = the y that leaves t u at the logits (σ/t) W v + b
#
# Of a binary cross-entropy every entry has to be 0 or 1, or smoothed alike: C conditions for one
# scalar. Without a bias there is an exact twin, as sigmoid(−z) = 1 − sigmoid(z): ``−t`` means the
# label ``1 − y``. Behind several steps of the head alone ``t u`` is the mean residual of all steps,
# and the logits of each follow from those before by ``z ← z − η (‖x‖² + β) δ``, where ``β = 1`` if
# the head's bias is trained as well.
TOLERANCE = 1e-3  # the L1 distance below which two labels count as one
NUDGE = 1e-4  # relative: how far a scalar is moved to see what moves with it
SLOPE = 1e-5  # how far a label or a logit is moved to see what a residual does
NEWTON_STEPS, NEWTON_DONE, LONGEST = 24, 1e-11, 4.0  # of the label behind several steps
NOWHERE = 1e3  # an entry of no label
DENSITY = 128  # points of the grid per factor e of |t|
UNSURE = 0.05  # the error of an entry beyond which any label is near zeros and ones


@dataclass(frozen=True, eq=False)
class EntryCurve:
    """Ŷ(t) of N clients. ``a = σ W v`` and ``u`` are (N, C), ``b`` (C,), the rest (N,).

    With an unknown scale, ``t`` stands for ``τ`` and the share's factor is chosen for a ``family``.
    """

    a: Tensor
    b: Tensor
    u: Tensor
    squared: Tensor  # σ², so that ‖x‖² = σ²/t²
    loss: Loss
    relative: float
    slack: Tensor  # the rounding of u's entries beyond their own size
    reach: Tensor  # how far rounding moves a logit at t = 1
    offset: float  # and at any t
    steps: SgdSteps | None = None  # several, of the head alone
    bias_trained: bool = False  # whether the head's bias takes part in them
    rescaled: Family | None = None  # the family that chooses the factor of the share

    @classmethod
    def of(
        cls, head: Head, factors: Factors, loss: Loss, steps: SgdSteps | None = None,
        bias_trained: bool = False, rescaled: Family | None = None,
    ) -> EntryCurve:  # fmt: skip
        """Return the curves behind a batch of head gradients, or of their means over steps."""
        a = factors.sigma[:, None] * head.logits(factors.v)
        roundings = PSEUDO_LABEL_LOGIT_ROUNDINGS * factors.relative
        largest = factors.sigma * head.largest_weight + a.abs().amax(-1)
        reach = roundings * largest + head.largest_row * factors.absolute
        several = steps if steps is not None and steps.steps > 1 else None
        return cls(
            a, head.b, factors.u, factors.sigma.square(), loss, factors.relative,
            factors.absolute / factors.sigma, reach, roundings * float(head.b.abs().amax()),
            several, bias_trained, rescaled,
        )  # fmt: skip

    @property
    def points_at_once(self) -> int:
        return max(CACHED_ENTRIES // self.u.shape[-1], 1)

    @property
    def slope(self) -> float:
        """Return ``f``, the factor of the loss."""
        return self.loss.slope(self.u.shape[-1])

    def _logits(self, t: Tensor) -> Tensor:
        return self.a[:, None] / t[..., None] + self.b

    def labels(self, t: Tensor) -> tuple[Tensor, Tensor]:
        z, size = self._logits(t), t.abs()
        if self.rescaled is not None:
            size = self._factors(t, z)
        target = (size * t.sign())[..., None] * self.u[:, None]
        y = self.loss.label(z, target)
        return (y if self.steps is None else self._solved(t, z, target, y)), size / self.slope

    def _factors(self, t: Tensor, z: Tensor) -> Tensor:
        """Return the |t| (N, S) at which labels are nearest to zeros and ones.

        The label is ``y(s) = y(0) + s (y(1) − y(0))``, and has to be ``kind + e (1 − 2 kind)``,
        with ones where the residual is negative: ``s`` and ``e`` by least squares.
        """
        u = t.sign()[..., None] * self.u[:, None]
        kind = (u < 0).to(u.dtype)
        along, right = self.loss.label(z, 0 * u) - self.loss.label(z, u), self.loss.label(z, 0 * u)
        right = right - kind
        if not isinstance(self.rescaled, Binary):  # without what smoothing explains
            mean = 1 - 2 * kind
            along = along - mean * (along * mean).mean(-1, keepdim=True)
            right = right - mean * (right * mean).mean(-1, keepdim=True)
        most = 2 * self.slope * self.u.shape[-1] ** 0.5
        found = (along * right).sum(-1) / along.square().sum(-1).clamp_min(1e-300)
        return found.clamp(PSEUDO_LABEL_SMALLEST_SCALAR * most, most)

    def _run(self, t: Tensor, z: Tensor, y: Tensor) -> Tensor:
        """Return the mean residual (N, S, C) that a label leaves, starting from logits ``z``."""
        if self.steps is None:
            return self.loss.residual(z, y)
        length = (self.squared[:, None] / t.square() + float(self.bias_trained))[..., None]
        fixed = 0.0 if self.bias_trained else self.b
        moved, memory = torch.zeros_like(y), None
        for k, kept in enumerate(self.steps.kept[:-1]):
            delta = self.loss.residual(kept * (z - fixed) + fixed - length * moved, y)
            moved, memory = self.steps.at(k).step(moved, memory, delta)
        return moved / self.steps.total

    def _solved(self, t: Tensor, z: Tensor, target: Tensor, y: Tensor) -> Tensor:
        """Return the labels whose steps leave the target, by Newton's method for each entry."""
        off = target
        for _ in range(NEWTON_STEPS):
            off = self._run(t, z, y) - target
            slope = (self._run(t, z, y + SLOPE) - off - target) / SLOPE
            step = (off / slope).nan_to_num(0.0, LONGEST, -LONGEST).clamp(-LONGEST, LONGEST)
            y = y - step
            if not step.numel() or float(step.abs().max()) <= NEWTON_DONE:
                break
        solved = off.abs() <= 1e-9 * (target.abs() + self.slope)
        return torch.where(solved, y, NOWHERE)

    def errors(self, t: Tensor, y: Tensor) -> Tensor:
        """Return what rounding of logits, residuals and predictions leaves in a label."""
        z, size, f = self._logits(t), t.abs()[..., None], self.slope
        if self.rescaled is not None:
            size = self._factors(t, z)[..., None]
        own = self.relative * self.u[:, None].abs() + self.slack[:, None, None]
        of_residual = size * own + f * self.relative * (self.loss.predict(z).abs() + y.abs())
        moved = self.reach[:, None, None] / t.abs()[..., None] + self.offset
        at = self._run(t, z, y)
        by_logit = (self._run(t, z + SLOPE, y) - at).abs() / SLOPE
        by_label = (self._run(t, z, y + SLOPE) - at).abs() / SLOPE
        return (by_logit * moved + of_residual) / by_label.clamp_min(1e-12 * f)

    def logits(self) -> Tensor:
        return self.a

    def take(self, rows: Tensor) -> EntryCurve:
        return replace(
            self, a=self.a[rows], u=self.u[rows], squared=self.squared[rows],
            slack=self.slack[rows], reach=self.reach[rows],
        )  # fmt: skip

    def interval(self) -> Interval:
        """Return all scalars of both signs: residuals of C outputs are at most √C long.

        Of several steps those that are stable: a sigmoid curves by a quarter of ``f``.
        """
        everyone = torch.arange(len(self.u), device=self.u.device).repeat(2)
        ones = torch.ones_like(everyone, dtype=self.u.dtype)
        most = self.slope * self.u.shape[-1] ** 0.5 * ones
        sign = torch.cat([ones[: len(self.u)], -ones[: len(self.u)]])
        smallest = PSEUDO_LABEL_SMALLEST_SCALAR * most
        if self.rescaled is not None:  # τ is as large as the logits allow, whatever the factor
            most = self.a.abs().amax(-1).repeat(2).clamp_min(1e-300) * 1e4
            smallest = most * 1e-6
        if self.steps is not None:
            longest = 8 * (1 + self.steps.momentum) / (self.steps.lr * self.slope)
            smallest = smallest.maximum((self.squared / longest).sqrt().repeat(2)).minimum(most / 2)
        return Interval(everyone, sign, smallest, most, DENSITY)


def tags_of_head(
    subject: Subject, knowledge: Knowledge, share: GradientShare, loss: BinaryCrossEntropy
) -> Recovery:
    """Return several labels of one sample from the head's weight alone, at any factor if open."""
    factors, scale = factor(subject.head, [share]), knowledge.of(share).scale
    own = isinstance(knowledge.family, Binary | SmoothedBinary)
    family = knowledge.family if own else None
    positive = subject.once(never_negative)
    plain = EntryCurve.of(subject.head, factors, loss)
    if scale != "unknown":
        found = recover_binary(plain, factors, family, positive)
        if found.label is not None or scale == "known":
            return found
    open_ = replace(plain, rescaled=family or SmoothedBinary())
    return recover_binary(open_, factors, family, positive)


def recover_binary(
    curve: EntryCurve, factors: Factors, family: Family | None, positive: bool = False
) -> Recovery:
    """Return the label of one sample under a binary cross-entropy, from the head's weight alone.

    Args:
        curve: the labels along the scalar, of one client.
        factors: those of the head's gradient.
        family: what is known of the label: zeros and ones, by default smoothed alike.
        positive: whether features cannot be negative, which decides the scalar's sign.
    """
    kind, loss = family or SmoothedBinary(), curve.loss
    minima = search(curve, kind, curve.interval())
    usable = minima.fits
    if positive:  # factors have the sign that makes most of v positive
        usable = usable & (minima.scalar > 0)
    minima = minima.take(usable.nonzero()[:, 0])
    found = [_candidate(curve, kind, minima, index) for index in range(len(minima.scalar))]
    if not found:
        return Recovery(Status.NO_SOLUTION, "no scalar gives labels of zeros and ones", loss=loss)
    first = min(found, key=lambda one: one.misfit)
    same = all(torch.equal(one.label > 0.5, first.label > 0.5) for one in found)
    error, label = first.rounding + first.width, kind.project(first.label)
    error += max(float((one.label - first.label).abs().sum()) for one in found) * (not same)
    binary = float((label - Binary().project(label)).abs().sum()) <= error
    simplest = Binary() if binary else SmoothedBinary()
    tested = spare_bits(curve, simplest, first.scalar) >= DOUBT_SPARE_BITS
    sure = same and first.width < 0.5 and tested
    words = (
        "one set of labels explains the gradient of the binary cross-entropy" if sure
        else f"explained equally well by {len(found)} sets of labels" if not same
        else "too few outputs to single out a set of labels"
    )  # fmt: skip
    t = first.scalar
    spread = max(first.high - t, t - first.low) / abs(t)
    size = float(curve.labels(t * torch.ones(1, 1).to(curve.u))[1]) * curve.slope
    return Recovery(
        Status.UNIQUE if sure and error <= TOLERANCE else Status.AMBIGUOUS,
        words, label, factors.sigma[0] / t * factors.v[0], size if t > 0 else -size, error,
        spread + factors.feature_error(0), abs(t) / size, family=simplest,
        candidates=tuple(found), complete=tested, loss=loss,
    )  # fmt: skip


def label_at(curve: EntryCurve, t: float, error: float) -> tuple[Tensor, Tensor]:
    """Return the label (C,) at a scalar that is known to within an error, and its entries' own."""
    along = curve.u.new_tensor([[t, t - error, t + error]])
    y, _ = curve.labels(along)
    return y[0, 0], curve.errors(along, y)[0].amax(0) + (y[0] - y[0, 0]).abs().amax(0)


def spare_bits(curve: EntryCurve, family: Family, scalar: float) -> float:
    """Return how much the entries test beyond what the unknowns absorb, in bits.

    An entry that would be off by ``d`` if ``log t`` were off by one, and is known to within ``e``,
    is zero or one by chance with probability ``e/d``. The scalar, the smoothing and the share's
    factor, as far as they are unknown, absorb the sharpest.
    """
    t = torch.tensor([[scalar * (1 + NUDGE), scalar * (1 - NUDGE)]], dtype=torch.double)
    t = t.to(curve.u)
    y, _ = curve.labels(t)
    slope = (y[0, 0] - y[0, 1]).abs() / (2 * NUDGE)
    bits = (slope / curve.errors(t, y)[0, 0]).clamp_min(1.0).log2().sort().values
    unknowns = (1 if isinstance(family, Binary) else 2) + int(curve.rescaled is not None)
    return float(bits[:-unknowns].sum())


def _candidate(curve: EntryCurve, family: Family, minima: Minima, index: int) -> Candidate:
    """Return one solution with the labels of its interval."""
    mine = curve.take(minima.client[index : index + 1])
    t = torch.stack([minima.scalar[index], minima.low[index], minima.high[index]])[None]
    y, _ = mine.labels(t)
    rounding = 4 * float(mine.errors(t, y)[0].sum(-1).max())
    label = family.project(y[0, 0])
    scalar, low, high = t[0].tolist()
    return Candidate(
        scalar, low, high, float(minima.misfit[index]), True, label, family.project(y[0]), rounding
    )
