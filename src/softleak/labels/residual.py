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

from softleak.core.factors import Factors
from softleak.core.head import Head
from softleak.core.loss import BinaryCrossEntropy, CrossEntropy, Loss, MeanSquaredError
from softleak.core.share import GradientShare
from softleak.labels.evidence.relation import Estimate

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

    def stepped_back(self, lr: float) -> Residual:
        """Return the residual at the weights before a step that was taken with these gradients."""
        moved = lr * self.delta * (self.feature.square().sum() + float(self.has_bias))
        return replace(self, z=self.z - moved)

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
