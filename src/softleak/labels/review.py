"""This module has second thoughts about a label that fits.

A certificate says that one label explains the numbers as they stand. Here they are doubted: is it
one sample at all, and is the share the gradient itself?
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.families import KNOWN_FAMILIES, AnyLabel, OneHot
from softleak.labels.evidence.combine import CombinedEvidence
from softleak.labels.messages import ONE_STEP, POSITIVE, UNVOUCHED, Doubt, explain_reading
from softleak.labels.minima import SEARCH
from softleak.labels.pseudo import PseudoLabels
from softleak.labels.readings import simpler_readings, simplicity
from softleak.labels.scale import Segment, other_factors_fit
from softleak.labels.tempered import tempered_readings
from softleak.results import Reading, Recovery, Status


@dataclass(frozen=True)
class ReviewThresholds:
    """These thresholds decide when an answer is doubted."""

    more_than_one_step: float = (
        1.01  # times one step: what only several steps, or another rate, can leave
    )
    near_prediction: float = (
        0.02  # L2: a label this close to the prediction marks a share scaled down
    )
    at_prediction: float = 1e-3  # L2: as close as this, only a one-hot label is no such mark


REVIEW = ReviewThresholds()


def review(
    found: Sequence[Recovery], pseudo: PseudoLabels, verdict: CombinedEvidence, scale: str | None,
    updates: Sequence[bool],
) -> list[Recovery]:  # fmt: skip
    """Return the recoveries of N clients, UNIQUE only where the doubts have an answer as well.

    ``updates`` says which shares are differences of checkpoints.
    """
    answers = [_of_two_classes(one, pseudo.u.shape[-1]) for one in found]
    if scale == "known":
        return answers
    asked = [i for i, one in enumerate(answers) if _open_to_readings(one, verdict, i)]
    if not asked:
        return answers
    rows = torch.tensor(asked, device=pseudo.u.device)
    tau = verdict.scalar[rows].clone()
    error = verdict.error[rows].clone()
    for index, i in enumerate(asked):
        if not bool(verdict.decided[i]):
            tau[index], error[index] = _scalar_of(answers[i])
    readings = _other_readings([answers[i] for i in asked], pseudo.take(rows), tau, error, scale)
    unsure = _strengths_open([answers[i] for i in asked], Segment.at(pseudo.take(rows), tau, error))
    for i, reading, open_ in zip(asked, readings, unsure, strict=True):
        decided = bool(verdict.decided[i])
        answers[i] = _with_reading(answers[i], reading, scale, decided, updates[i])
        if scale is None and open_ and reading is None:
            answers[i] = _of_open_factor(answers[i], Doubt.STRENGTH)
    return answers


def _other_readings(
    answers: Sequence[Recovery], pseudo: PseudoLabels, tau: Tensor, error: Tensor,
    scale: str | None,
) -> list[Reading | None]:  # fmt: skip
    """Return for each of N answers a simpler label of the same numbers, if there is one."""
    levels = [simplicity(one.family, pseudo.u.shape[-1]) for one in answers]
    readings = list(simpler_readings(pseudo, tau, error, levels, scale is None))
    arbitrary = [
        index
        for index, one in enumerate(answers)
        if readings[index] is None and isinstance(one.family, AnyLabel)
    ]
    if scale is None and arbitrary:
        some = torch.tensor(arbitrary, device=pseudo.u.device)
        warmer = tempered_readings(pseudo.take(some), tau[some], error[some])
        for index, reading in zip(arbitrary, warmer, strict=True):
            readings[index] = reading
    return readings


def _strengths_open(answers: Sequence[Recovery], segments: Segment) -> list[bool]:
    """Return which of N labels have others of the same simple family at other factors.

    Where the prediction is one-hot to the last bit, a label smoothed by 0.1 leaves a tenth of what
    the flat label leaves. Only a one-hot label keeps its kind at one factor alone.
    """
    found = []
    for index, answer in enumerate(answers):
        mine = segments.take(torch.tensor([index], device=segments.p.device))
        best = segments.p.new_tensor([abs(answer.scalar or 1.0)])
        kinds = [one for one in KNOWN_FAMILIES if one == answer.family and one != OneHot()]
        proved = answer.status is Status.UNIQUE
        found.append(proved and any(other_factors_fit(mine, k, best, SEARCH.fit) for k in kinds))
    return found


def _open_to_readings(answer: Recovery, verdict: CombinedEvidence, client: int) -> bool:
    """Return whether a label is claimed, or none was found although the evidence gives a scalar."""
    if answer.status is Status.NO_SOLUTION:
        return bool(verdict.decided[client]) and not verdict.conflicts(client)
    return answer.complete


def _scalar_of(answer: Recovery) -> tuple[float, float]:
    """Return the scalar of the best solution, and how far it may be off."""
    best = answer.solutions[0]
    return best.scalar, max(best.high - best.scalar, best.scalar - best.low)


def _of_two_classes(answer: Recovery, classes: int) -> Recovery:
    """Doubt two classes, whose batches have gradients of rank one, unless another layer speaks."""
    if classes > 2 or answer.status is not Status.UNIQUE:
        return answer
    witnesses = [piece.parameter for piece in answer.evidence if piece.single]
    if not witnesses:
        return _doubted(answer, Doubt.TWO_CLASSES.value)
    rests = f"that it is one sample rests on the gradient of {witnesses[0]}"
    return replace(answer, message=f"{answer.message}; {rests}")


def _with_reading(
    answer: Recovery, reading: Reading | None, scale: str | None, decided: bool, update: bool
) -> Recovery:
    if reading is not None:
        words = explain_reading(reading, answer.label is not None)
        doubted = replace(_doubted(answer, words), readings=(reading,))
        if answer.label is not None:
            return doubted
        return replace(doubted, label=reading.label, scale=reading.scale)
    arbitrary = isinstance(answer.family, AnyLabel)
    if answer.status is Status.NO_SOLUTION:
        return answer
    if scale == "unknown" and update and answer.scale > REVIEW.more_than_one_step:
        return _doubted(answer, Doubt.STEPS.value)
    if scale == "unknown":
        assumed = f"{POSITIVE}; {ONE_STEP}" if update else POSITIVE
        return replace(answer, message=f"{answer.message}; {assumed}")
    distance = abs(answer.scalar or 0.0)
    near = REVIEW.near_prediction if arbitrary else REVIEW.at_prediction
    if distance < near and not isinstance(answer.family, OneHot):
        return _of_open_factor(answer, Doubt.SCALED_DOWN)
    if arbitrary and answer.status is Status.UNIQUE:
        return _of_open_factor(answer, Doubt.ARBITRARY)
    # Numbers too coarse to give one label do not rule out a simpler one at another scale either.
    simplest = answer.status is Status.UNIQUE or isinstance(answer.family, OneHot)
    complete = answer.complete and (simplest or not decided)
    return replace(answer, message=f"{answer.message}; {UNVOUCHED}", complete=complete)


def _doubted(answer: Recovery, words: str) -> Recovery:
    return replace(answer, status=Status.AMBIGUOUS, message=words, complete=False)


def _of_open_factor(answer: Recovery, doubt: Doubt) -> Recovery:
    """Doubt a label that is another one at another factor: nothing bounds how far off it is."""
    return replace(_doubted(answer, doubt.value), error=math.inf)
