"""Ask whether an update bears out what is assumed of it, and read it under another loss."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from softleak.core.factors import Factors, factor, numerical_rank
from softleak.core.families import KNOWN_FAMILIES, Binary, Family
from softleak.core.fit import Bearing, Explanation, Fit, Hypothesis, Topic
from softleak.core.head import Head
from softleak.core.knowledge import Knowledge
from softleak.core.loss import CROSS_ENTROPY, BinaryCrossEntropy, CrossEntropy, Loss
from softleak.core.results import Evidence, Reading, Recovery, Status, Why, because
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.labels.composition import BatchReader, entry_error
from softleak.labels.evidence.probes import evidence_for
from softleak.labels.evidence.relation import combine
from softleak.labels.noisy.recover import recover_tags
from softleak.labels.noisy.spectrum import SPECTRUM_HOLES, Spectrum, holes
from softleak.labels.otherwise import is_sign_pattern
from softleak.labels.residual import (
    FITS,
    LOGIT_ROUNDINGS,
    SAME_FACTOR,
    LossReading,
    Residual,
    at_temperature,
    simple_readings,
    tags_of_head,
)

GRID_LEAST, GRID_MOST = 8, 600  # levels of a grid that rounding to 8 bits leaves
GRID_OFF = 0.04  # of a step: how far values may lie beside a grid
MOST_STEPS = 64  # of rounding that the entries of a residual may hold
GRID_REPEATS = 4  # times as many values as levels
# Entries that were cut off: the part of zeros, and the smallest of the others beside their median.
CUT_ZEROS, CUT = 0.1, 0.2
ABSENT = 0.5  # of the smallest singular value that noise leaves: less means that it is not there
ZEROS = 0.01  # the part of entries that noise would have to leave exactly zero
FEWEST_ENTRIES, MOST_ENTRIES = 64, 1 << 22  # of a matrix whose singular values show noise
COARSEST_MARGIN = 1e-4  # relative: the error of a residual beyond which sizes may only seem alike
COARSE = 1e-5  # rounding of the head's gradient from which layers may disagree by it
PARALLEL = 0.99  # the cosine from which sums are those of weight decay
# Adaptive steps: entries of a tensor that shows them, how far apart the largest of tensors may be,
# what decay alone moves, and the kurtosis half-way from even sizes (1.8) to those of noise (3).
FEWEST_MOVED, ALIKE, BARELY, LIGHT = 64, 2.0, 0.01, 2.4
UNEVEN = 3.0  # times the noise elsewhere: larger sums over classes are not noise
# The fit of a label of a simple kind, which chance alone would not leave.
BORNE_OUT = Fit.of([Hypothesis(Topic.SCALE, Bearing.HOLDS, number=1.0)], Bearing.HOLDS)
OF_ANY_SCALE = BORNE_OUT.saying(Hypothesis(Topic.SCALE, Bearing.OPEN))
NAMED = {"ce": Explanation.NONE, "bce": Explanation.BCE, "mse": Explanation.MSE}


@dataclass(frozen=True, eq=False)
class Examined:
    """What the numbers of a gradient say, and the label that they mean.

    Attributes:
        fit: what they say of every assumption.
        seen: the head's residual, if one sample is behind it and something tells its size.
        reading: the loss, sign and factor at which the residual means a label of a simple kind.
        pieces: what other layers say.
    """

    fit: Fit
    seen: Residual | None = None
    reading: LossReading | None = None
    pieces: tuple[Evidence, ...] = ()


def fitted(
    subject: Subject, knowledge: Knowledge, share: GradientShare, answer: Recovery
) -> Recovery:
    """Return an answer with its fit; it claims nothing on an assumption that is contradicted."""
    head = subject.head
    if answer.status is Status.UNIQUE and answer.family in KNOWN_FAMILIES:
        fit = OF_ANY_SCALE if knowledge.scale_unknown else BORNE_OUT
        # A share of the feature ``x`` under a loss that divides the logits by a temperature is that
        # of ``x/T`` under the plain loss, entry by entry, unless the logits have a bias or another
        # layer tells the length of the feature.
        told = subject.head.has_bias or any(piece.agrees for piece in answer.evidence)
        if knowledge.loss is None and not told:
            fit = fit.saying(Hypothesis(Topic.LOSS, Bearing.OPEN, Explanation.ANY_TEMPERATURE))
        return replace(answer, fit=beside_statements(fit, knowledge, share))
    if answer.status is Status.ZERO_GRADIENT:
        frozen = Fit.of([_contradiction(Topic.STEPS, Explanation.FROZEN)])
        moved = any(share.largest(name) for name in share)
        return replace(answer, fit=frozen) if moved else answer
    if head.weight_name not in share:
        return answer
    found = examine(subject, share, knowledge)
    answer = replace(answer, fit=beside_statements(found.fit, knowledge, share))
    if found.reading is not None and found.seen is not None:
        return read_as(answer, found.reading, found.seen, share, found.pieces)
    if answer.status is Status.UNIQUE:
        return _doubted(answer, found)
    # Where something tells the size of the residual, several labels were read from it already.
    several = None if found.seen is not None else _binary(subject, knowledge, share, answer)
    if several is not None:
        return several
    return _contradicted(answer, found, subject, share)


def beside_statements(fit: Fit, knowledge: Knowledge, share: GradientShare) -> Fit:
    """Return the fit beside what the caller stated of noise."""
    if not knowledge.noise or (share.rounding and max(share.rounding.values()) >= knowledge.noise):
        return fit
    absent = Hypothesis(Topic.NOISE, Bearing.CONTRADICTED, Explanation.ABSENT, knowledge.noise)
    return fit.saying(absent)


def read_as(
    answer: Recovery, reading: LossReading, seen: Residual, share: GradientShare,
    pieces: tuple[Evidence, ...],
) -> Recovery:  # fmt: skip
    """Return the answer under the loss, sign and factor that make a simple label of the numbers."""
    plain = reading.factor > 0
    same = abs(reading.factor - 1) <= SAME_FACTOR
    open_ = same or share.scale != "known"
    found = answer.status is not Status.NO_SOLUTION
    if isinstance(reading.loss, CrossEntropy) and plain and open_ and found:
        return answer  # which was searched under this loss, and may be doubted for good reasons
    sentences = " ".join(h.sentence for h in answer.fit.hypotheses if h.explanation.value)
    family = _family(reading)
    if isinstance(reading.loss, CrossEntropy) or not plain or not open_:
        other = Reading(reading.label, 1 / reading.factor, family)
        reason = f"read as it was stated, the update means no label of a simple kind. {sentences}"
        return replace(
            answer, status=Status.AMBIGUOUS, reason=reason, complete=False, readings=(other,),
            label=reading.label if answer.label is None else answer.label, noise=0.0,
        )  # fmt: skip
    return Recovery(
        Status.UNIQUE, sentences, reading.label, seen.feature, seen.t * reading.factor,
        reading.error, seen.relative, 1 / reading.factor, difference=seen.delta, family=family,
        evidence=pieces, complete=True, loss=reading.loss, fit=answer.fit,
    )  # fmt: skip


def _family(reading: LossReading) -> Family:
    """Return the simplest family of a reading's label."""
    if isinstance(reading.loss, BinaryCrossEntropy):
        return Binary()
    return KNOWN_FAMILIES[0] if float(reading.label.max()) == 1 else KNOWN_FAMILIES[1]


def _doubted(answer: Recovery, found: Examined) -> Recovery:
    """Return a label of no simple kind, doubted where a temperature makes a simple one of it."""
    told = None if found.seen is None else at_temperature(found.seen)
    if told is None:
        return answer
    warm, reading = told
    other = Reading(reading.label, 1 / reading.factor, KNOWN_FAMILIES[1], warm)
    words = answer.fit[Topic.LOSS].sentence
    return replace(
        answer, status=Status.AMBIGUOUS, reason=words, complete=False, readings=(other,),
        error=math.inf,
    )  # fmt: skip


def _binary(
    subject: Subject, knowledge: Knowledge, share: GradientShare, answer: Recovery
) -> Recovery | None:
    """Return several labels of one sample, if the head alone tells them and it is no cross-entropy.

    Without a bias there is an exact twin of the other sign, which features of one sign rule out.
    """
    factors = factor(subject.head, [share])
    loss = answer.fit[Topic.LOSS]
    product = bool(factors.rank_one & ~factors.zero)
    compressed = answer.fit[Topic.COMPRESSION].bearing is Bearing.CONTRADICTED
    if not product or compressed or loss.bearing is not Bearing.CONTRADICTED:
        return None
    for one in (BinaryCrossEntropy(), BinaryCrossEntropy(reduction="sum")):
        found = tags_of_head(subject, knowledge, share, one)
        if found.label is not None and found.complete:
            bce = Hypothesis(Topic.LOSS, Bearing.HOLDS, Explanation.BCE, loss.number)
            return replace(found, fit=answer.fit.saying(bce))
    return None


def _lopsided(answer: Recovery, share: GradientShare, subject: Subject) -> bool:
    """Return whether nearly every class is raised, which a gradient does to few."""
    name = subject.head.bias_name
    told = name in share and subject.head.has_bias and not answer.noise
    if not told or answer.fit[Topic.LOSS].bearing is Bearing.CONTRADICTED:
        return False
    delta = share[name].double()
    error = LOGIT_ROUNDINGS * entry_error(share, name, subject.head.dtype)
    raised, lowered = int((delta < -error).sum()), int((delta > error).sum())
    return subject.once(BatchReader.of).is_lopsided(share, raised, lowered)


def _contradicted(
    answer: Recovery, found: Examined, subject: Subject, share: GradientShare
) -> Recovery:
    """Return an answer that claims no label, if the numbers contradict an assumption."""
    if _lopsided(answer, share, subject):
        sign = Hypothesis(Topic.SIGN, Bearing.CONTRADICTED, Explanation.SWAPPED)
        answer = replace(answer, fit=answer.fit.saying(sign))
    if answer.status is Status.NO_SOLUTION and answer.fit.holds:
        weights = Hypothesis(Topic.WEIGHTS, Bearing.CONTRADICTED, Explanation.OTHER_WEIGHTS)
        answer = replace(answer, fit=answer.fit.saying(weights))
    against = {h.topic: h for h in answer.fit.contradicted}
    against.pop(Topic.NOISE, None)  # the declaration is wrong, and was left out
    named = answer.status is Status.AMBIGUOUS and bool(answer.readings or answer.solutions)
    if not against or answer.status is Status.NOT_SINGLE or named:
        return answer
    pruned = Explanation.PRUNED in answer.fit.explanations
    if against.keys() == {Topic.COMPRESSION} and not pruned:
        return answer  # which was read as noise of that size, or as signs
    if answer.status is not Status.NO_SOLUTION:
        return contradictions(answer, found)
    return _with_feature(answer, found)


def contradictions(answer: Recovery, found: Examined) -> Recovery:
    """Return an answer that says what the numbers contradict, and claims no label."""
    against = (h for h in answer.fit.contradicted if h.topic is not Topic.NOISE)
    reason = " ".join(h.sentence for h in against)
    nothing = Recovery(
        Status.NO_SOLUTION, reason, fit=answer.fit, evidence=found.pieces, loss=answer.loss
    )
    return _with_feature(nothing, found)


def _with_feature(answer: Recovery, found: Examined) -> Recovery:
    """Return an answer with what holds of the residual whatever the loss."""
    seen = found.seen
    if seen is None or answer.fit[Topic.LOSS].bearing is not Bearing.CONTRADICTED:
        return answer
    # Where another layer agrees, the feature is that of the sample whatever the loss.
    agree = sum(piece.agrees for piece in found.pieces) > 1
    error = seen.relative if agree else math.inf
    return replace(
        answer, feature=seen.feature, scalar=seen.t, feature_error=error, difference=seen.delta
    )


def examine(subject: Subject, share: GradientShare, knowledge: Knowledge) -> Examined:
    """Return what the numbers of a gradient say of every assumption."""
    head = subject.head
    G = share[head.weight_name].to(head.W.device).double()
    compression = compression_of(share, G)
    if compression.bearing is Bearing.CONTRADICTED:
        return Examined(Fit.of([compression]))
    factors = factor(head, [share])
    verdict = combine(evidence_for(subject, knowledge), [share], head, factors)
    pieces = verdict.pieces[0]
    seen = Residual.of(head, share, factors, verdict)
    if seen is not None:
        loss = knowledge.loss
        reading = next(simple_readings(seen, knowledge.other_loss), None)
        one = list(_of_one(seen, reading, share, loss))
        said = [compression, *one, *_of_layers(subject, pieces, factors)]
        if reading is None and (swapped := _swapped(seen, knowledge, share)) is not None:
            reading, said = swapped, [*said, *_of_one(seen, swapped, share, loss)]
        return Examined(Fit.of(said), seen, reading, pieces)
    if _is_rounding(factors) and bool(head.W.any()):
        return Examined(Fit.of([compression]), pieces=pieces)
    said = list(_of_many(subject, share, G, factors))
    refuted = [piece.misfit for piece in pieces if piece.refutes and not piece.holds]
    clean = bool(factors.rank_one) and float(factors.explained[0]) <= COARSE
    if clean and refuted and all(one.bearing is not Bearing.CONTRADICTED for one in said):
        said.append(_contradiction(Topic.WEIGHTS, Explanation.OTHER_WEIGHTS, max(refuted)))
    return Examined(Fit.of([compression, *said]), pieces=pieces)


def _contradiction(topic: Topic, why: Explanation, number: float | None = None) -> Hypothesis:
    return Hypothesis(topic, Bearing.CONTRADICTED, why, number)


def _of_one(
    seen: Residual, reading: LossReading | None, share: GradientShare, stated: Loss | None
) -> Iterator[Hypothesis]:
    """Yield what one sample's residual says of loss, weights, sign, scale, steps and noise."""
    yield Hypothesis(Topic.STEPS, Bearing.HOLDS)
    yield Hypothesis(Topic.NOISE, Bearing.HOLDS, number=0.0)
    if reading is None:
        if stated is None or stated == CROSS_ENTROPY:
            yield from _unread(seen, share)
        else:
            yield from _unread_under(seen, stated)
        return
    yield Hypothesis(Topic.WEIGHTS, Bearing.HOLDS, number=reading.misfit)
    if stated is not None and stated.name == reading.loss.name:
        why = Explanation.NONE if stated == CROSS_ENTROPY else Explanation.STATED
        yield Hypothesis(Topic.LOSS, Bearing.HOLDS, why, reading.misfit)
    else:
        bearing = Bearing.HOLDS if stated is None else Bearing.CONTRADICTED
        named = Explanation.CE if stated and reading.loss.balanced else NAMED[reading.loss.name]
        yield Hypothesis(Topic.LOSS, bearing, named, reading.misfit)
    if reading.factor < 0:
        yield _contradiction(Topic.SIGN, Explanation.SWAPPED, reading.misfit)
    else:
        yield Hypothesis(Topic.SIGN, Bearing.HOLDS)
    if abs(abs(reading.factor) - 1) <= SAME_FACTOR:
        yield Hypothesis(Topic.SCALE, Bearing.HOLDS, number=1.0)
        return
    impossible = share.scale == "known" and _below_zero(seen) > LOGIT_ROUNDINGS
    bearing = Bearing.CONTRADICTED if impossible else Bearing.OPEN
    yield Hypothesis(Topic.SCALE, bearing, Explanation.OTHER_SCALE, 1 / abs(reading.factor))


def _below_zero(seen: Residual) -> float:
    """Return how far the label of the cross-entropy is below zero, in errors."""
    loss = CrossEntropy()
    return float((-loss.label(seen.z, seen.delta) / seen.errors(loss, 1.0)).max())


def _unread(seen: Residual, share: GradientShare) -> Iterator[Hypothesis]:
    """Yield what a residual without a simple label says: it may be of any label, or of none."""
    if len(seen.delta) == 1:
        yield Hypothesis(Topic.LOSS, Bearing.OPEN)
        return
    error, total = seen.errors(CrossEntropy(), 1.0), float(seen.delta.sum())
    off = total / float(seen.delta.abs().sum())
    if _is_margin(seen.delta, seen.relative):
        yield _contradiction(Topic.LOSS, Explanation.MARGIN, off)
        return
    if abs(total) > 4 * float(error.sum()):
        yield _contradiction(Topic.LOSS, Explanation.OTHER_LOSS, off)
        return
    warm = at_temperature(seen)
    impossible = _below_zero(seen) > LOGIT_ROUNDINGS and share.scale != "unknown"
    if warm is not None:
        bearing = Bearing.CONTRADICTED if impossible else Bearing.OPEN
        yield Hypothesis(Topic.LOSS, bearing, Explanation.TEMPERATURE, warm[0])
    elif impossible:
        yield _contradiction(Topic.WEIGHTS, Explanation.OTHER_WEIGHTS, _below_zero(seen))


def _unread_under(seen: Residual, loss: Loss) -> Iterator[Hypothesis]:
    """Yield what a residual says that means no label of a simple kind under a stated loss."""
    errors, label = seen.errors(loss, 1.0), loss.label(seen.z, seen.delta)
    total = float(seen.delta.sum())
    rounding = seen.relative * float(seen.delta.abs().sum()) + seen.absolute * len(seen.delta)
    off = torch.maximum(loss.least - label, label - loss.most) / errors
    if not loss.balanced and len(label) > 1 and abs(total) <= LOGIT_ROUNDINGS * rounding:
        yield _contradiction(Topic.LOSS, Explanation.CE, total)
    elif float(off.max()) > LOGIT_ROUNDINGS:
        yield _contradiction(Topic.LOSS, Explanation.NO_LABEL, float(off.max()))
    else:
        yield Hypothesis(Topic.LOSS, Bearing.OPEN, Explanation.STATED)


def _is_rounding(factors: Factors) -> bool:
    """Return whether the residual may be rounding errors alone: few whole steps in every entry.

    They are what is left of ``p − y`` where the label equals the model's own prediction.
    """
    if not bool(factors.rank_one & ~factors.zero):
        return False
    steps = torch.arange(1.0, MOST_STEPS, dtype=torch.double)[:, None]
    parts = steps * (factors.u[0] / factors.u[0].abs().max()).cpu()
    off = (parts - parts.round()).abs().amax(1)
    allowed = LOGIT_ROUNDINGS * factors.relative * steps[:, 0]
    return bool(((off <= allowed) & (allowed <= GRID_OFF)).any())


def _is_margin(delta: Tensor, relative: float) -> bool:
    """Return whether a residual is that of a margin: one size where it is violated, else zero."""
    if relative > COARSEST_MARGIN:
        return False
    largest = float(delta.abs().max())
    above = delta[delta > 1e-3 * largest]
    below = delta[delta < -1e-3 * largest]
    if len(below) != 1 or len(above) < 3:
        return False
    return bool((above / above.mean() - 1).abs().max() <= LOGIT_ROUNDINGS * relative + 1e-6)


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
    if not bool(factors.rank_one) and rank < min(G.shape):
        yield Hypothesis(Topic.STEPS, Bearing.OPEN, Explanation.SEVERAL, float(rank))
    own = head.column_sums
    if sums <= rounding:
        yield Hypothesis(Topic.LOSS, Bearing.HOLDS, number=off)
    elif bool(own.any()) and float(torch.cosine_similarity(G.sum(0), own, 0).abs()) > PARALLEL:
        decay = float(G.sum(0) @ own / own.square().sum())
        yield Hypothesis(Topic.STEPS, Bearing.OPEN, Explanation.DECAY, decay)
    elif (adaptive := _of_steps(share)) is not None:
        yield adaptive
    elif rank < min(G.shape) - 1:
        yield Hypothesis(Topic.NOISE, Bearing.HOLDS, number=0.0)
        yield _contradiction(Topic.LOSS, Explanation.OTHER_LOSS, off)
    else:
        yield _of_noise(G, sums, off)


def _of_steps(share: GradientShare) -> Hypothesis | None:
    """Return that all parameters moved by about the same amount, if steps of Adam left them so.

    The tails of what they leave are lighter than those of noise, by three standard errors at least.
    """
    sizes = [g.double().abs().flatten() for g in share.values() if g.numel() >= FEWEST_MOVED]
    largest = [float(size.max()) for size in sizes]
    if len(largest) < 2 or max(largest) > ALIKE * min(largest):
        return None
    moved = torch.cat([size[size > BARELY * max(largest)] for size in sizes])
    kurtosis = float(moved.pow(4).mean() / moved.square().mean().square())
    if not kurtosis + 3 * math.sqrt(24 / len(moved)) < LIGHT:
        return None
    return _contradiction(Topic.STEPS, Explanation.ADAPTIVE)


def _of_noise(G: Tensor, sums: float, off: float) -> Hypothesis:
    """Return whether what stands beside the samples is noise: as large in the sums as elsewhere."""
    spectrum = Spectrum.of(G)
    if spectrum.even and sums <= UNEVEN * spectrum.noise * G.numel() ** 0.5:
        return Hypothesis(Topic.NOISE, Bearing.HOLDS, Explanation.MEASURED, spectrum.noise)
    return _contradiction(Topic.STEPS, Explanation.OTHER_STEPS, off)


def _of_layers(
    subject: Subject, pieces: tuple[Evidence, ...], factors: Factors
) -> Iterator[Hypothesis]:
    """Yield what layers that contradict each other say: of the mode, or of factors per tensor."""
    against = [piece for piece in pieces if piece.refutes]
    if not against or float(factors.explained[0]) > COARSE:
        return
    if any(
        isinstance(module, nn.modules.dropout._DropoutNd) and module.p and not module.training
        for module in subject.model.modules()
    ):
        yield _contradiction(Topic.MODE, Explanation.DROPOUT)
    elif all(piece.holds for piece in against):
        yield _contradiction(Topic.SCALE, Explanation.TENSOR_FACTORS)


def _swapped(seen: Residual, knowledge: Knowledge, share: GradientShare) -> LossReading | None:
    """Return the reading of swapped checkpoints: the true weights are those after the step back."""
    if not share.rounding:
        return None  # it is no difference of checkpoints
    moved = seen.delta * (seen.feature.square().sum() + float(seen.has_bias))
    before = replace(seen, z=seen.z - (knowledge.lr or 1.0) * moved)
    return next((one for one in simple_readings(before) if one.factor < 0), None)


def compression_of(share: GradientShare, G: Tensor) -> Hypothesis:
    """Return whether entries were removed, or rounded to a grid, or left as signs."""
    if is_sign_pattern(G):
        return _contradiction(Topic.COMPRESSION, Explanation.SIGNS)
    step, empty = grid_step(G), holes(G)
    if step is not None:
        return _contradiction(Topic.COMPRESSION, Explanation.GRID, step)
    if empty > SPECTRUM_HOLES:
        return _contradiction(Topic.COMPRESSION, Explanation.PRUNED, empty)
    cut = [_is_cut(g) for g in share.values() if g.numel() >= FEWEST_ENTRIES and g.any()]
    if cut and all(cut) and bool(G.any()):
        return _contradiction(
            Topic.COMPRESSION, Explanation.PRUNED, float((G == 0).double().mean())
        )
    return Hypothesis(Topic.COMPRESSION, Bearing.HOLDS)


def _is_cut(gradient: Tensor) -> bool:
    """Return whether small entries are missing: the sizes of a gradient come down to zero."""
    sizes = gradient[gradient != 0].double().abs()
    zeros = 1 - len(sizes) / gradient.numel()
    nothing = not len(sizes)
    return nothing or (zeros > CUT_ZEROS and float(sizes.min()) > CUT * float(sizes.median()))


def grid_step(G: Tensor) -> float | None:
    """Return the spacing of the grid that all values lie on; None if they lie on no coarse one."""
    levels: Tensor = torch.unique(G.flatten()[: 1 << 20])
    if not GRID_LEAST <= len(levels) <= min(GRID_MOST, G.numel() // GRID_REPEATS):
        return None
    step = float(levels.diff().min())
    if float(levels[-1] - levels[0]) > GRID_MOST * step:
        return None
    steps = (levels - levels[0]) / step
    return step if bool(((steps - steps.round()).abs() <= GRID_OFF).all()) else None


def taken_for_noise(subject: Subject, share: GradientShare, recovery: Recovery) -> float:
    """Return the noise behind which words are read: what is missing of a pruned update is some."""
    pruned = Explanation.PRUNED in recovery.fit.explanations
    if recovery.noise or not pruned:
        return recovery.noise
    return Spectrum.of(share[subject.head.weight_name].double().cpu()).noise


def noise_is_absent(share: GradientShare, noise: float) -> bool:
    """Return whether the numbers contradict independent noise of this size on every entry.

    The smallest singular value of a matrix (m, n) that carries it is about ``σ (√n − √m)`` at
    least, whatever else is in the matrix. And no entry of it is exactly zero.
    """
    for gradient in share.values():
        if gradient.ndim < 2 or not FEWEST_ENTRIES <= gradient.numel() <= MOST_ENTRIES:
            continue
        M = gradient.detach().double().flatten(1)
        if float((M == 0).double().mean()) > ZEROS:
            return True
        m, n = min(M.shape), max(M.shape)
        if n < 2 * m:
            continue
        if float(torch.linalg.svdvals(M)[-1]) < ABSENT * noise * (n**0.5 - m**0.5):
            return True
    return False


# The label of one sample under a stated loss that is no plain cross-entropy, or of one output.
# Where the head's bias or evidence of other layers tells the residual, the loss reads any label
# from it. From the head's weight alone, several binary labels follow from one scalar; targets that
# may be any numbers do not.
DECAY_LEAST = 3  # outputs from which weight decay shows beside one sample
DECAY_SEED = 0


def loss_beside_softmax(knowledge: Knowledge, head: Head) -> Loss | None:
    """Return the loss that a share is read under; None if that is the plain cross-entropy.

    A single output is taken to be trained with a binary cross-entropy.
    """
    return knowledge.other_loss or (BinaryCrossEntropy() if head.classes == 1 else None)


def recover_under(
    subject: Subject, knowledge: Knowledge, share: GradientShare, loss: Loss
) -> Recovery:
    """Return the label and the feature of one sample under a loss."""
    head = subject.head
    if head.weight_name not in share:
        return Recovery(Status.NO_SOLUTION, because(Why.NO_HEAD_WEIGHT), loss=loss)
    factors = factor(head, [share])
    if bool(factors.zero):
        return _without_feature(head, share, knowledge, loss)
    if not bool(factors.rank_one):
        return _not_of_one(subject, knowledge, share, loss, factors)
    found = examine(subject, share, knowledge)
    nothing = Recovery(Status.NO_SOLUTION, because(Why.NO_LABEL_OF_LOSS, loss=loss), loss=loss)
    answer = replace(nothing, fit=beside_statements(found.fit, knowledge, share))
    if found.seen is None:
        return _by_head_alone(subject, knowledge, share, answer)
    if found.reading is not None:
        return read_as(answer, found.reading, found.seen, share, found.pieces)
    if not answer.fit.holds:
        return contradictions(answer, found)
    return _as_stated(knowledge, share, found, answer)


def _as_stated(
    knowledge: Knowledge, share: GradientShare, found: Examined, answer: Recovery
) -> Recovery:
    """Return the label of no simple kind that a residual means under a loss.

    Any numbers mean some label then: it is proved only if the caller vouches for what they are.
    """
    seen, loss, scale = found.seen, answer.loss, knowledge.of(share).scale
    if seen is None:
        return answer
    label, errors = loss.label(seen.z, seen.delta), seen.errors(loss, 1.0)
    family = knowledge.family
    fits = family is None or bool(((family.project(label) - label).abs() <= FITS * errors).all())
    if not fits:
        return replace(answer, reason=because(Why.NO_LABEL_OF_FAMILY, family=family))
    # Any numbers are a label of some loss: only those of a stated family test the loss itself.
    one = min(len(seen.z), len(seen.feature)) > 1 or any(p.single for p in found.pieces)
    refuted = any(piece.refutes for piece in found.pieces)
    sure = family is not None and one and scale == "known" and not refuted
    # A multiple of the gradient means a label on a segment, and nothing bounds how far along it.
    error = float(errors.sum()) if scale == "known" else math.inf
    certain = sure and error <= max(knowledge.tolerance, knowledge.tolerance * float(label.norm()))
    why = Why.UNDER_STATED_LOSS if sure else Why.LOSS_NOT_TESTED
    return replace(
        answer, status=Status.UNIQUE if certain else Status.AMBIGUOUS, label=label, error=error,
        reason=because(why, loss=loss), feature=seen.feature, feature_error=seen.relative,
        scalar=seen.t, difference=seen.delta, evidence=found.pieces, complete=certain,
        family=family,
    )  # fmt: skip


def _by_head_alone(
    subject: Subject, knowledge: Knowledge, share: GradientShare, answer: Recovery
) -> Recovery:
    """Return what the head's weight gradient alone says: one scalar, and a label for each."""
    loss = answer.loss
    if not isinstance(loss, BinaryCrossEntropy) or subject.head.classes == 1:
        why = because(Why.ANY_SCALAR_FITS, loss=loss)
        return replace(answer, status=Status.AMBIGUOUS, reason=why)
    found = tags_of_head(subject, knowledge, share, loss)
    if found.label is None:
        return replace(answer, reason=found.reason)
    return replace(found, fit=answer.fit.saying(Hypothesis(Topic.LOSS, Bearing.HOLDS)))


def _without_feature(
    head: Head, share: GradientShare, knowledge: Knowledge, loss: Loss
) -> Recovery:
    """Return the label behind a head gradient of zeros: the feature is zero, or the residual."""
    zero = Recovery(Status.ZERO_GRADIENT, because(Why.ZERO_HEAD), loss=loss)
    if not head.has_bias or head.bias_name not in share or not bool(share[head.bias_name].any()):
        return zero
    delta = share[head.bias_name].to(head.b)
    rounding = LOGIT_ROUNDINGS * share.resolution(head.bias_name, head.dtype)
    feature = torch.zeros(head.W.shape[1], dtype=torch.double, device=delta.device)
    seen = Residual(
        1.0, delta, feature, head.b, rounding * head.b.abs(), rounding,
        share.noise(head.bias_name), True,
    )  # fmt: skip
    for reading in simple_readings(seen, loss):
        if reading.loss == loss and reading.factor == 1.0:
            return read_as(zero, reading, seen, share, ())
    found = Examined(zero.fit, seen)
    return replace(_as_stated(knowledge, share, found, zero), status=Status.AMBIGUOUS)


def _not_of_one(
    subject: Subject, knowledge: Knowledge, share: GradientShare, loss: Loss, factors: Factors
) -> Recovery:
    """Return what a head gradient says that is not of one sample: weight decay may be beside it."""
    head = subject.head
    decay = decay_beside_one(head, share)
    if decay is not None:
        own = {n: p for n, p in subject.parameters.items() if n in share}
        plain = {n: share[n].double() - decay * own[n].detach().double() for n in own}
        tried = replace(share, gradients={**share, **plain})
        if bool(factor(head, [tried]).rank_one):
            found = recover_under(subject, knowledge, tried, loss)
            status = Status.AMBIGUOUS if found.status is Status.UNIQUE else found.status
            sure = found.family is not None  # labels of a simple kind bear the decay out
            return found if sure else replace(found, status=status, complete=False)
    G = share[head.weight_name].to(head.W.device).double()
    compression = compression_of(share, G)
    if compression.bearing is Bearing.CONTRADICTED:
        fit = Fit.of([compression])
        nothing = Recovery(Status.NO_SOLUTION, because(Why.NO_LABEL_OF_LOSS, loss=loss), loss=loss)
        return contradictions(replace(nothing, fit=fit), Examined(fit))
    noisy = None
    if isinstance(loss, BinaryCrossEntropy):
        noisy = recover_tags(subject, knowledge, share, loss)
    if noisy is not None:
        noise = Hypothesis(Topic.NOISE, Bearing.HOLDS, Explanation.MEASURED, noisy.noise)
        return replace(noisy, fit=noisy.fit.saying(noise))
    rank = numerical_rank(head, share, factors.relative)
    if rank < min(head.W.shape):
        return Recovery(
            Status.NOT_SINGLE, because(Why.SEVERAL_RANK, rank=rank), samples=rank, loss=loss
        )
    contradicted = Hypothesis(Topic.STEPS, Bearing.CONTRADICTED, Explanation.OTHER_STEPS)
    why = because(Why.FULL_RANK, rank=rank)
    nothing = Recovery(Status.NO_SOLUTION, why, loss=loss)
    return replace(nothing, fit=nothing.fit.saying(contradicted))


def decay_beside_one(head: Head, share: GradientShare) -> float | None:
    """Return the ``λ`` at which ``G − λ W`` has rank one, if there may be one.

    Of the pencil ``(G P, W P)`` with a random ``P`` (I, C), all eigenvalues but one are ``λ``.
    """
    if head.classes < DECAY_LEAST or head.W.shape[1] < head.classes:
        return None
    generator = torch.Generator().manual_seed(DECAY_SEED)
    P = torch.randn(head.W.shape[1], head.classes, generator=generator, dtype=torch.double)
    P = P.to(head.W.device)
    G, W = share[head.weight_name].to(head.W.device).double() @ P, head.W.double() @ P
    if float(torch.linalg.cond(W)) > 1e10:
        return None
    values: Tensor = torch.linalg.eigvals(torch.linalg.solve(W, G))
    found = float(values.real.median())
    return found if found > 0 else None
