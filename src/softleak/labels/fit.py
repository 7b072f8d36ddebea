"""Ask whether an update bears out what is assumed of it, before anything is claimed of its label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from softleak.core.factors import Factors, factor, numerical_rank
from softleak.core.fit import Explanation, Fit, Hypothesis, Standing, Topic
from softleak.core.head import Head
from softleak.core.knowledge import Knowledge
from softleak.core.loss import CrossEntropy
from softleak.core.results import Evidence
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.labels.composition import is_sign_pattern
from softleak.labels.evidence.combine import CombinedEvidence, combine
from softleak.labels.evidence.probes import evidence_for
from softleak.labels.noisy.spectrum import SPECTRUM_HOLES, Spectrum, holes
from softleak.labels.residual import (
    LOGIT_ROUNDINGS,
    SAME_FACTOR,
    Reading,
    Residual,
    simple_readings,
    temperature_of,
)

GRID_LEAST, GRID_MOST = 8, 600  # levels of a grid that rounding to 8 bits leaves
GRID_OFF = 0.04  # of a step: how far values may lie beside a grid
GRID_REPEATS = 4  # times as many values as levels
ABSENT = 0.5  # of the smallest singular value that noise leaves: less means that it is not there
PARALLEL = 0.99  # the cosine from which sums are those of weight decay


def fit_of(
    subject: Subject, share: GradientShare, knowledge: Knowledge
) -> tuple[Fit, Reading | None, Residual | None]:
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
    clean = bool(factors.rank_one) and all(
        one.standing is not Standing.CONTRADICTED for one in many
    )
    if clean and refuted and not bool(verdict.coarse[0]):
        worst = max(piece.misfit for piece in refuted)
        many.append(
            Hypothesis(Topic.WEIGHTS, Standing.CONTRADICTED, Explanation.OTHER_WEIGHTS, worst)
        )
    return Fit.of([*found, *many]), None, None


def _of_one(
    seen: Residual,
    reading: Reading | None,
    share: GradientShare,
    verdict: CombinedEvidence,
    head: Head,
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


def _unread(
    seen: Residual, share: GradientShare, others: Sequence[Evidence]
) -> Iterator[Hypothesis]:
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
    yield Hypothesis(
        Topic.WEIGHTS, Standing.CONTRADICTED, Explanation.OTHER_WEIGHTS, float(-y.min())
    )


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
    return step if bool(((steps - steps.round()).abs() <= GRID_OFF).all()) else None


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
