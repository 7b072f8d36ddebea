"""Several labels of one sample from the head's weight gradient alone, by one scalar again.

    ŷ(t) = sigmoid((σ/t) W v + b) − (t/f) u

and the same over the span of a label where labels that are there have weights of their own.
Every entry has to be 0 or 1, or smoothed alike: C conditions for one scalar. Without a bias there
is an exact twin, since sigmoid(−z) = 1 − sigmoid(z): ``−t`` means the label ``1 − y``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.core.factors import Factors
from softleak.core.families import Binary, Family, SmoothedBinary
from softleak.core.head import Head
from softleak.core.loss import BinaryCrossEntropy
from softleak.core.results import Candidate, Recovery, Status
from softleak.labels.certify import DOUBT_SPARE_BITS
from softleak.labels.curve import (
    CACHED_ENTRIES,
    PSEUDO_LABEL_LOGIT_ROUNDINGS,
    PSEUDO_LABEL_SMALLEST_SCALAR,
    Interval,
)
from softleak.labels.search import Minima, search

TOLERANCE = 1e-3  # the L1 distance below which two labels count as one
NUDGE = 1e-4  # relative: how far a scalar is moved to see what moves with it
DENSITY = 128  # points of the grid per factor e of |t|


@dataclass(frozen=True, eq=False)
class BinaryCurve:
    """Ŷ(t) of N clients. ``a = σ W v`` and ``u`` are (N, C), ``b`` (C,), the rest (N,)."""

    a: Tensor
    b: Tensor
    u: Tensor
    loss: BinaryCrossEntropy
    relative: float
    slack: Tensor  # the rounding of u's entries beyond their own size
    reach: Tensor  # how far rounding moves a logit at t = 1
    offset: float  # and at any t

    @classmethod
    def of(cls, head: Head, factors: Factors, loss: BinaryCrossEntropy) -> BinaryCurve:
        """Return the curves behind a batch of head gradients."""
        a = factors.sigma[:, None] * head.logits(factors.v)
        roundings = PSEUDO_LABEL_LOGIT_ROUNDINGS * factors.relative
        largest = factors.sigma * head.largest_weight + a.abs().amax(-1)
        reach = roundings * largest + head.largest_row * factors.absolute
        return cls(
            a, head.b, factors.u, loss, factors.relative,
            factors.absolute / factors.sigma, reach, roundings * float(head.b.abs().amax()),
        )  # fmt: skip

    @property
    def points_at_once(self) -> int:
        return max(CACHED_ENTRIES // self.u.shape[-1], 1)

    def _logits(self, t: Tensor) -> Tensor:
        return self.a[:, None] / t[..., None] + self.b

    @property
    def slope(self) -> float:
        """Return ``f``, the factor of the loss."""
        return self.loss.slope(self.u.shape[-1])

    def labels(self, t: Tensor) -> tuple[Tensor, Tensor]:
        y = self.loss.label(self._logits(t), t[..., None] * self.u[:, None])
        return y, t.abs() / self.slope

    def errors(self, t: Tensor, y: Tensor) -> Tensor:
        size = t.abs()[..., None]
        p = torch.sigmoid(self._logits(t))
        moved = p * (1 - p) * (self.reach[:, None, None] / size + self.offset)
        own = self.relative * self.u[:, None].abs() + self.slack[:, None, None]
        return moved + self.relative * p + size / self.slope * own

    def logits(self) -> Tensor:
        return self.a

    def take(self, rows: Tensor) -> BinaryCurve:
        return replace(
            self, a=self.a[rows], u=self.u[rows], slack=self.slack[rows], reach=self.reach[rows]
        )

    def interval(self) -> Interval:
        """Return all scalars of both signs: residuals of C outputs are at most √C long."""
        everyone = torch.arange(len(self.u), device=self.u.device).repeat(2)
        ones = torch.ones_like(everyone, dtype=self.u.dtype)
        most = self.slope * self.u.shape[-1] ** 0.5
        sign = torch.cat([ones[: len(self.u)], -ones[: len(self.u)]])
        smallest = PSEUDO_LABEL_SMALLEST_SCALAR * most * ones
        return Interval(everyone, sign, smallest, most * ones, DENSITY)


def recover_binary(
    head: Head, factors: Factors, family: Family | None, loss: BinaryCrossEntropy,
    positive: bool = False,
) -> Recovery:  # fmt: skip
    """Return the label of one sample under a binary cross-entropy, from the head's weight alone.

    Args:
        head: the model's head.
        factors: those of the head's gradient, of one client.
        family: what is known of the label: zeros and ones, by default smoothed alike.
        loss: the loss with its factor.
        positive: whether features cannot be negative, which decides the scalar's sign.
    """
    curve, kind = BinaryCurve.of(head, factors, loss), family or SmoothedBinary()
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
    simplest = _simplest(label, error)
    tested = spare_bits(curve, simplest, first.scalar) >= DOUBT_SPARE_BITS
    sure = same and first.width < 0.5 and tested
    words = (
        "one set of labels explains the gradient of the binary cross-entropy" if sure
        else f"explained equally well by {len(found)} sets of labels" if not same
        else "too few outputs to single out a set of labels"
    )  # fmt: skip
    t = first.scalar
    spread = max(first.high - t, t - first.low) / abs(t)
    return Recovery(
        Status.UNIQUE if sure and error <= TOLERANCE else Status.AMBIGUOUS,
        words, label, factors.sigma[0] / t * factors.v[0], t, error,
        spread + factors.feature_error(0), family=simplest,
        candidates=tuple(found), complete=tested, loss=loss,
    )  # fmt: skip


def spare_bits(curve: BinaryCurve, family: Family, scalar: float) -> float:
    """Return how much the entries test beyond what the unknowns absorb, in bits.

    An entry that would be off by ``d`` if ``log t`` were off by one, and is known to within ``e``,
    is zero or one by chance with probability ``e/d``. The scalar, and the smoothing if there is
    any, absorb the sharpest.
    """
    t = torch.tensor([[scalar * (1 + NUDGE), scalar * (1 - NUDGE)]], dtype=torch.double)
    t = t.to(curve.u)
    y, _ = curve.labels(t)
    slope = (y[0, 0] - y[0, 1]).abs() / (2 * NUDGE)
    bits = (slope / curve.errors(t, y)[0, 0]).clamp_min(1.0).log2().sort().values
    unknowns = 1 if isinstance(family, Binary) else 2
    return float(bits[:-unknowns].sum())


def _simplest(label: Tensor, error: float) -> Family:
    off = float((label - Binary().project(label)).abs().sum())
    return Binary() if off <= error else SmoothedBinary()


def _candidate(curve: BinaryCurve, family: Family, minima: Minima, index: int) -> Candidate:
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
