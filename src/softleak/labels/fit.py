"""Ask whether an update bears out what is assumed of it, before anything is claimed of its label.

The head's gradients of one sample are ``G = δ xᵀ`` and ``g = δ``, whatever the loss. Where ``δ`` is
known (from the head's bias, or from evidence of other layers), so is the feature, and with the
weights the logits ``z``. Then each loss means one label, ``y = predict(z) − δ/f``: the loss, the
sign and the scale hold for which ``y`` is a label of a simple kind. Chance does not make it one,
since all classes have to agree on one factor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from torch import Tensor

from softleak.core.factors import Factors, factor, numerical_rank
from softleak.core.fit import Explanation, Fit, Hypothesis, Standing, Topic
from softleak.core.head import Head
from softleak.core.knowledge import Knowledge
from softleak.core.loss import BinaryCrossEntropy, CrossEntropy, Loss, MeanSquaredError
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.labels.composition import is_sign_pattern
from softleak.labels.evidence.combine import CombinedEvidence, combine
from softleak.labels.evidence.probes import evidence_for
from softleak.labels.noisy.spectrum import SPECTRUM_HOLES, Spectrum, holes

LOGIT_ROUNDINGS = 16.0  # of the largest term of a logit
FITS = 6.0  # errors, root mean square over the classes: a label this near to its kind is one
FEWEST = 2  # equations beyond the unknowns, for a kind of label to be more than chance
SAME_FACTOR = 1e-3  # relative: a factor this close to one is one
GRID_LEAST, GRID_MOST = 8, 600  # levels of a grid that rounding to 8 bits leaves
GRID_OFF = 1e-2  # of a step: how far values may lie beside a grid
GRID_REPEATS = 4  # times as many values as levels
ABSENT = 0.5  # of the smallest singular value that noise leaves: less means that it is not there
TEMPERATURES, HOTTEST = 41, 32.0  # how many are tried, and the largest
PARALLEL = 0.99  # the cosine from which sums are those of weight decay


LOSSES_TRIED: tuple[Loss, ...] = (
    CrossEntropy(), BinaryCrossEntropy(), BinaryCrossEntropy("sum"),
    MeanSquaredError(), MeanSquaredError("sum"),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Residual:
    """What the head's gradients say of one sample before any loss is assumed.

    Attributes:
        delta: ``δ`` (C,), the gradient at the logits, up to the share's factor.
        feature: ``x`` (I,), exact whatever that factor is.
        z: the logits (C,).
        z_error: the error of each logit.
        relative: the relative error of ``δ``.
        absolute: the absolute error of an entry of ``δ``.
    """

    delta: Tensor
    feature: Tensor
    z: Tensor
    z_error: Tensor
    relative: float
    absolute: float

    @classmethod
    def of(
        cls, head: Head, share: GradientShare, factors: Factors, verdict: CombinedEvidence
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
        return cls(delta, x, z, z_error, unsure, float(factors.absolute[0] / factors.sigma[0]) * abs(t))

    def tempered(self, temperature: float) -> Residual:
        """Return the residual of a loss that divides the logits by a temperature."""
        z, error = self.z / temperature, self.z_error / temperature
        return replace(self, z=z, z_error=error)

    def errors(self, loss: Loss, factor: float) -> Tensor:
        """Return the error (C,) of the label that a loss means at a factor of ``δ``."""
        step = self.z_error
        moved = (loss.predict(self.z + step) - loss.predict(self.z - step)).abs() / 2
        size = abs(factor) / loss.slope(len(self.z))
        resolution = 4 * torch.finfo(torch.float32).eps * self.relative
        return moved + size * (self.relative * self.delta.abs() + self.absolute) + resolution


@dataclass(frozen=True, eq=False)
class Reading:
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


def simple_readings(seen: Residual) -> Iterator[Reading]:
    """Yield every reading of a residual as a label of a simple kind, the plainest first."""
    for given, sign, loss in product((True, False), (1.0, -1.0), LOSSES_TRIED):
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


def _read(
    seen: Residual, loss: Loss, sign: float, kind: Tensor, given: bool
) -> Reading | None:
    """Return the reading of one kind: at the factor ``given`` by the loss, or at any.

    With ``y = (1 − e) kind + e/n`` (n is 1 for each entry by itself, and C on the simplex; 1/2 of a
    binary one) the conditions are linear in the factor ``s`` and the smoothing ``e``.
    """
    predicted, outputs = loss.predict(seen.z), len(seen.z)
    slope = seen.delta * sign / loss.slope(outputs)
    error = seen.errors(loss, 1.0)
    even = {"ce": 1.0 / outputs, "bce": 0.5, "mse": 0.0}[loss.name]
    columns = [] if given else [slope]
    columns += [even - kind] if even else []
    right = predicted - kind - (slope if given else 0.0)
    weighted = right / error
    solved = torch.zeros(0, dtype=torch.double)
    left = weighted
    if columns:
        A = torch.stack(columns, 1) / error[:, None]
        solved = torch.linalg.lstsq(A, weighted[:, None], driver="gelsd").solution[:, 0]
        left = weighted - A @ solved
    s = 1.0 if given else float(solved[0])
    e = float(solved[-1]) if even else 0.0
    spare = outputs - len(columns) - (1 if loss.balanced else 0)
    if not 0.0 < s or not -1e-3 < e < 0.9:
        return None
    scaled = error if given else seen.errors(loss, s)
    misfit = float((left * error / scaled).square().mean().sqrt())
    if spare < FEWEST or not misfit <= FITS or _by_chance(seen, loss, s, scaled):
        return None
    label = (1 - e) * kind + e * even if even else kind
    return Reading(loss, sign * s, label, float(scaled.sum()), misfit, spare)


def temperature_of(seen: Residual) -> float | None:
    """Return a temperature other than one at which a residual means a label of one class.

    The loss divides the logits by it, and perhaps the whole is multiplied by a factor.
    """

    def left(log_t: float) -> float:
        reading = _fitted(seen.tempered(math.exp(log_t)))
        return math.inf if reading is None else reading

    tried = torch.linspace(-1.0, 1.0, TEMPERATURES).mul(math.log(HOTTEST)).tolist()
    values = [left(one) for one in tried]
    best = min(range(len(tried)), key=values.__getitem__)
    if best in (0, len(tried) - 1):
        return None
    found = minimize_scalar(left, bounds=(tried[best - 1], tried[best + 1]), method="bounded", options={"xatol": 1e-12})
    warm = math.exp(float(found.x))
    exact = found.fun <= FITS and len(seen.z) > FEWEST + 4 and abs(warm - 1) > 10 * SAME_FACTOR
    return warm if exact else None


def _fitted(seen: Residual) -> float | None:
    """Return the misfit of a smoothed label of one class at the best factor."""
    loss = CrossEntropy()
    kind = _kind(seen, loss, 1.0, False)
    error = seen.errors(loss, 1.0)
    A = torch.stack([seen.delta, 1.0 / len(kind) - kind], 1) / error[:, None]
    right = (loss.predict(seen.z) - kind) / error
    solved = torch.linalg.lstsq(A, right[:, None], driver="gelsd").solution[:, 0]
    s = float(solved[0])
    if s <= 0:
        return None
    scaled = seen.errors(loss, s)
    return float(((right - A @ solved) * error / scaled).square().mean().sqrt())


def _by_chance(seen: Residual, loss: Loss, s: float, error: Tensor) -> bool:
    """Return whether the residual is so small that any label is within its error."""
    moved = s / loss.slope(len(seen.z)) * seen.delta.abs()
    return float(error.max()) > 0.05 * float(moved.max())


def fit_of(subject: Subject, share: GradientShare, knowledge: Knowledge) -> tuple[Fit, Reading | None, Residual | None]:
    """Return what the numbers of a gradient say of every assumption, and the reading that holds."""
    head = subject.head
    G = share[head.weight_name].to(head.W.device).double()
    found = [_compression(subject, share, G)]
    factors = factor(head, [share])
    if found[0].standing is Standing.CONTRADICTED:
        return Fit.of([*found, _noise(knowledge, share)]), None, None
    verdict = combine(evidence_for(subject, knowledge), [share], head, factors)
    seen = Residual.of(head, share, factors, verdict)
    if seen is not None:
        reading = next(simple_readings(seen), None)
        return Fit.of([*found, *_of_one(seen, reading, share, verdict, head)]), reading, seen
    refuted = [piece for piece in verdict.pieces[0] if piece.refutes and not piece.holds]
    many = list(_of_many(subject, share, G, factors))
    clean = bool(factors.rank_one) and all(one.standing is not Standing.CONTRADICTED for one in many)
    if clean and refuted and not bool(verdict.coarse[0]):
        worst = max(piece.misfit for piece in refuted)
        many.append(
            Hypothesis(Topic.WEIGHTS, Standing.CONTRADICTED, Explanation.OTHER_WEIGHTS, worst)
        )
    return Fit.of([*found, *many]), None, None


def _of_one(
    seen: Residual, reading: Reading | None, share: GradientShare, verdict: CombinedEvidence, head: Head
) -> Iterator[Hypothesis]:
    """Yield what one sample's residual says of loss, weights, sign, scale, steps and noise."""
    yield Hypothesis(Topic.STEPS, Standing.HOLDS)
    yield Hypothesis(Topic.NOISE, Standing.HOLDS, number=0.0)
    others = [piece for piece in verdict.pieces[0] if piece.parameter != head.bias_name]
    if reading is None:
        yield from _unread(seen, share, others)
        return
    number = reading.misfit
    yield Hypothesis(Topic.WEIGHTS, Standing.HOLDS, number=number)
    known = isinstance(reading.loss, CrossEntropy)
    names = {"ce": Explanation.NONE, "bce": Explanation.BCE, "mse": Explanation.MSE}
    standing = Standing.HOLDS if known else Standing.CONTRADICTED
    yield Hypothesis(Topic.LOSS, standing, names[reading.loss.name], number)
    swapped = reading.factor < 0
    if swapped:
        yield Hypothesis(Topic.SIGN, Standing.CONTRADICTED, Explanation.SWAPPED, number)
    else:
        yield Hypothesis(Topic.SIGN, Standing.HOLDS)
    if abs(abs(reading.factor) - 1) <= SAME_FACTOR:
        yield Hypothesis(Topic.SCALE, Standing.HOLDS, number=1.0)
    else:
        stated = Standing.CONTRADICTED if share.scale == "known" else Standing.OPEN
        yield Hypothesis(Topic.SCALE, stated, Explanation.OTHER_SCALE, 1 / abs(reading.factor))


def _unread(seen: Residual, share: GradientShare, others: Sequence[object]) -> Iterator[Hypothesis]:
    """Yield what a residual without a simple label says: it may be of any label, or of none."""
    error = seen.errors(CrossEntropy(), 1.0)
    y = CrossEntropy().label(seen.z, seen.delta)
    balanced = abs(float(seen.delta.sum())) <= 4 * float(error.sum())
    margin = _is_margin(seen.delta, seen.relative)
    if not balanced or margin:
        name = Explanation.MARGIN if margin else Explanation.OTHER_LOSS
        size = float(seen.delta.abs().sum())
        yield Hypothesis(Topic.LOSS, Standing.CONTRADICTED, name, float(seen.delta.sum()) / size)
        return
    warm = temperature_of(seen)
    if warm is not None:
        yield Hypothesis(Topic.LOSS, Standing.OPEN, Explanation.TEMPERATURE, warm)
    worst = float((-y / error).max())
    if worst <= LOGIT_ROUNDINGS or share.scale == "unknown":
        return  # a label of no simple kind, or one at another factor
    if warm is not None:
        yield Hypothesis(Topic.LOSS, Standing.CONTRADICTED, Explanation.TEMPERATURE, warm)
        return
    yield Hypothesis(Topic.WEIGHTS, Standing.CONTRADICTED, Explanation.OTHER_WEIGHTS, float(-y.min()))


def _is_margin(delta: Tensor, relative: float) -> bool:
    """Return whether a residual is that of a margin: one size where it is violated, else zero."""
    largest = float(delta.abs().max())
    above = delta[delta > 1e-3 * largest]
    below = delta[delta < -1e-3 * largest]
    if len(below) != 1 or len(above) < 3:
        return False
    return bool((above / above.mean() - 1).abs().max() <= 16 * relative + 1e-6)


def _of_many(
    subject: Subject, share: GradientShare, G: Tensor, factors: Factors
) -> Iterator[Hypothesis]:
    """Yield what a head's gradient says that is not known to be one sample's."""
    head = subject.head
    relative = share.resolution(head.weight_name, head.dtype)
    sums = float(G.sum(0).norm())
    rounding = LOGIT_ROUNDINGS * relative * float(G.abs().sum(0).norm())
    rounding += LOGIT_ROUNDINGS * share.noise(head.weight_name) * G.numel() ** 0.5
    off = sums / max(float(G.norm()), 1e-300)
    rank = numerical_rank(head, share, relative)
    if bool(factors.rank_one):
        yield Hypothesis(Topic.STEPS, Standing.OPEN)
    elif rank < min(G.shape):
        yield Hypothesis(Topic.STEPS, Standing.OPEN, Explanation.SEVERAL, float(rank))
    if sums <= rounding:
        yield Hypothesis(Topic.LOSS, Standing.HOLDS, number=off)
        return
    own = head.column_sums
    if float(own.norm()) and float(torch.cosine_similarity(G.sum(0), own, 0).abs()) > PARALLEL:
        yield Hypothesis(Topic.STEPS, Standing.OPEN, Explanation.DECAY, off)
        return
    if rank < min(G.shape) - 1:
        yield Hypothesis(Topic.NOISE, Standing.HOLDS, number=0.0)
        yield Hypothesis(Topic.LOSS, Standing.CONTRADICTED, Explanation.OTHER_LOSS, off)
        return
    yield from _of_noise(G, off)


def _of_noise(G: Tensor, off: float) -> Iterator[Hypothesis]:
    """Yield whether what stands beside the samples is noise: as large in the sums as elsewhere."""
    classes, inputs = G.shape
    spectrum = Spectrum.of(G)
    expected = spectrum.noise * (classes * inputs) ** 0.5
    if float(G.sum(0).norm()) <= 3 * expected:
        yield Hypothesis(Topic.NOISE, Standing.HOLDS, Explanation.MEASURED, spectrum.noise)
    else:
        yield Hypothesis(Topic.STEPS, Standing.CONTRADICTED, Explanation.OTHER_STEPS, off)


def _noise(knowledge: Knowledge, share: GradientShare) -> Hypothesis:
    return Hypothesis(Topic.NOISE, Standing.OPEN)


def _compression(subject: Subject, share: GradientShare, G: Tensor) -> Hypothesis:
    """Return whether entries were removed, or rounded to a grid, or left as signs."""
    if is_sign_pattern(G):
        return Hypothesis(Topic.COMPRESSION, Standing.CONTRADICTED, Explanation.SIGNS)
    step = grid_step(G)
    if step is not None:
        return Hypothesis(Topic.COMPRESSION, Standing.CONTRADICTED, Explanation.GRID, step)
    empty = holes(G)
    if empty > SPECTRUM_HOLES:
        return Hypothesis(Topic.COMPRESSION, Standing.CONTRADICTED, Explanation.PRUNED, empty)
    return Hypothesis(Topic.COMPRESSION, Standing.HOLDS)


def grid_step(G: Tensor) -> float | None:
    """Return the spacing of the grid that all values lie on; None if they lie on no coarse one."""
    if G.numel() < GRID_REPEATS * GRID_LEAST:
        return None
    levels = G.flatten()[: 1 << 20].unique()
    if not GRID_LEAST <= len(levels) <= min(GRID_MOST, G.numel() // GRID_REPEATS):
        return None
    step = float(levels.diff().min())
    if not step > 0 or float(levels[-1] - levels[0]) > GRID_MOST * step:
        return None
    steps = (levels - levels[0]) / step
    steps = steps / max(round(float(steps[-1])), 1) * float(steps[-1]) if False else steps
    return step if bool(((steps - steps.round()).abs() <= GRID_OFF * 4).all()) else None


def noise_is_absent(share: GradientShare, noise: float) -> bool:
    """Return whether independent noise of this size on every entry is contradicted.

    The smallest singular value of a matrix (m, n) that carries it is about ``σ (√n − √m)`` at least,
    whatever else is in the matrix; and no entry of it is exactly zero.
    """
    for gradient in share.values():
        if gradient.ndim < 2 or gradient.numel() < 64:
            continue
        M = gradient.detach().double().flatten(1)
        if float((M == 0).double().mean()) > 0.01:
            return True
        m, n = min(M.shape), max(M.shape)
        if n < 2 * m or M.numel() > 1 << 22:
            continue
        least = float(torch.linalg.svdvals(M)[-1])
        if least < ABSENT * noise * (n**0.5 - m**0.5):
            return True
    return False
