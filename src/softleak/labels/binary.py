"""One sample's label, entry by entry, under a loss whose outputs do not meet: one scalar again.

    δ = t u        x = (σ/t) v        ŷ(t) = the y that leaves t u at the logits (σ/t) W v + b

Of a binary cross-entropy every entry has to be 0 or 1, or smoothed alike: C conditions for one
scalar. Without a bias there is an exact twin, since sigmoid(−z) = 1 − sigmoid(z): ``−t`` means the
label ``1 − y``. Behind several steps of the head alone ``t u`` is the mean residual of all steps,
and the logits of each follow from those before by ``z ← z − η (‖x‖² + β) δ``, with ``β = 1`` if the
head's bias is trained as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.core.client import SgdSteps
from softleak.core.factors import Factors, factor
from softleak.core.families import Binary, Family, SmoothedBinary
from softleak.core.head import Head
from softleak.core.knowledge import Knowledge
from softleak.core.loss import BinaryCrossEntropy, Loss
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
from softleak.labels.search import Minima, search

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
