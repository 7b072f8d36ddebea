"""The label of one sample under a stated loss that is no plain cross-entropy, or of one output.

Where the head's bias or evidence of other layers tells the residual, the loss reads any label from
it. From the head's weight alone, several binary labels follow from one scalar; targets that may be
any numbers do not.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from softleak.core.factors import Factors, factor, numerical_rank
from softleak.core.fit import Bearing, Explanation, Fit, Hypothesis, Topic
from softleak.core.head import Head
from softleak.core.knowledge import Knowledge
from softleak.core.loss import BinaryCrossEntropy, Loss
from softleak.core.results import Recovery, Status, Why, because
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.labels.binary import tags_of_head
from softleak.labels.fit import (
    Examined,
    beside_statements,
    compression_of,
    contradictions,
    examine,
    read_as,
)
from softleak.labels.noisy.recover import recover_tags
from softleak.labels.residual import FITS, LOGIT_ROUNDINGS, Residual, simple_readings

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
