"""The label of one sample behind several steps under a loss whose outputs do not meet.

If the head alone was trained, ``z ← z − η (‖x‖² + β) δ`` holds for any residual ``δ``, entry by
entry. The update of a trained bias tells the scalar; binary labels are found without it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from softleak.core.client import SgdSteps, mean_of_head
from softleak.core.factors import Factors, factor, numerical_rank
from softleak.core.families import Binary, Family, SmoothedBinary
from softleak.core.knowledge import Knowledge
from softleak.core.loss import BinaryCrossEntropy, Loss
from softleak.core.results import Recovery, Status, Why, because
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.labels.binary import (
    NOWHERE,
    TOLERANCE,
    UNSURE,
    EntryCurve,
    label_at,
    recover_binary,
)
from softleak.labels.composition import never_negative
from softleak.labels.evidence.relation import Estimate, HeadBias, combine
from softleak.labels.local.head_alone import trains_bias, trains_head_alone
from softleak.labels.local.whole import recover_whole
from softleak.labels.residual import FEWEST, FITS

KINDS: tuple[Family, ...] = (Binary(), SmoothedBinary())


def recover_steps_under(
    subject: Subject, knowledge: Knowledge, share: GradientShare, recipe: SgdSteps, loss: Loss
) -> Recovery:
    """Return the label behind several steps on one sample under a loss that was stated."""
    if loss.balanced:
        return Recovery(Status.NO_SOLUTION, because(Why.STEPS_OF_LOSS, loss=loss), loss=loss)
    if not trains_head_alone(subject, share):
        found = recover_whole(subject, knowledge, share, recipe, loss)
        nothing = Recovery(Status.NO_SOLUTION, because(Why.STEPS_OF_LAYERS, loss=loss), loss=loss)
        return found or nothing
    mean = mean_of_head(subject, share, recipe)
    factors = factor(subject.head, [mean])
    if not bool(factors.rank_one & ~factors.zero):
        rank = numerical_rank(subject.head, mean, factors.relative)
        why = because(Why.SEVERAL_RANK, rank=rank)
        return Recovery(Status.NOT_SINGLE, why, samples=rank, loss=loss)
    bias = trains_bias(subject, share)
    curve = EntryCurve.of(subject.head, factors, loss, recipe, bias)
    family = knowledge.family if knowledge.family in KINDS else None
    nothing = Recovery(Status.NO_SOLUTION, because(Why.NO_LABEL_OF_LOSS, loss=loss), loss=loss)
    if bias and not knowledge.head_only:
        verdict = combine([HeadBias(subject.head.bias_name)], [mean], subject.head, factors)
        if bool(verdict.decided):
            return _at(curve, factors, verdict, family, nothing)
    if not isinstance(loss, BinaryCrossEntropy) or subject.head.classes == 1:
        why = because(Why.ANY_SCALAR_FITS, loss=loss)
        return replace(nothing, status=Status.AMBIGUOUS, reason=why)
    return recover_binary(curve, factors, family, subject.once(never_negative))


def _at(
    curve: EntryCurve, factors: Factors, verdict: Estimate, family: Family | None, nothing: Recovery
) -> Recovery:
    """Return the label at the scalar that the update of the head's bias tells."""
    t, loss = float(verdict.scalar), curve.loss
    label, errors = label_at(curve, t, float(verdict.error))
    outside = torch.maximum(loss.least - label, label - loss.most)
    if not bool((outside <= FITS * errors).all()) or float(label.abs().max()) >= NOWHERE:
        return nothing
    error, kind = float(errors.sum()), None
    if isinstance(loss, BinaryCrossEntropy) and float(errors.max()) < UNSURE:
        kinds: tuple[Family, ...] = KINDS if family is None else (family,)
        kind = next((one for one in kinds if _borne_out(one, label, errors)), None)
    sure = kind is not None and error <= TOLERANCE
    return replace(
        nothing, status=Status.UNIQUE if sure else Status.AMBIGUOUS, scalar=t, error=error,
        label=label if kind is None else kind.project(label), complete=sure, family=kind,
        feature=factors.sigma[0] / t * factors.v[0], evidence=verdict.pieces[0],
        feature_error=float(verdict.error) / abs(t) + factors.feature_error(0),
        reason=because(Why.UNDER_STATED_LOSS if sure else Why.LOSS_NOT_TESTED, loss=loss),
    )  # fmt: skip


def _borne_out(kind: Family, label: Tensor, errors: Tensor) -> bool:
    """Return whether a label is of a kind to within its errors, with equations to spare."""
    spare = len(label) - int(isinstance(kind, SmoothedBinary))
    return spare >= FEWEST and bool(((kind.project(label) - label).abs() <= FITS * errors).all())
