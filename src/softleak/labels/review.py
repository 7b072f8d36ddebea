"""Second thoughts: what a label that fits rests on, beyond the equations it satisfies.

A certificate says that one label explains the numbers as they stand. Here they are doubted: is it
one sample at all, and is the share the gradient itself?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from softleak.labels.evidence.weigh import Verdict
from softleak.labels.families import AnyLabel
from softleak.labels.messages import UNVOUCHED, Doubt, explain_reading
from softleak.labels.pseudo import PseudoLabels
from softleak.labels.readings import simpler_readings, simplicity
from softleak.results import Reading, Recovery, Status

NEAR = 0.02  # a label this close to the prediction, in L2, is the mark of a share scaled down


def review(
    found: Sequence[Recovery], pseudo: PseudoLabels, verdict: Verdict, scale: str | None
) -> list[Recovery]:
    """The recoveries of N clients, UNIQUE only where the doubts have an answer as well."""
    answers = [_of_two_classes(one, pseudo.u.shape[-1]) for one in found]
    if scale is not None:
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
    levels = [simplicity(answers[i].family, pseudo.u.shape[-1]) for i in asked]
    readings = simpler_readings(pseudo.take(rows), tau, error, levels)
    for i, reading in zip(asked, readings, strict=True):
        answers[i] = _with_reading(answers[i], reading)
    return answers


def _open_to_readings(answer: Recovery, verdict: Verdict, client: int) -> bool:
    """Whether a label is claimed, or none was found although the evidence gives a scalar."""
    if answer.status is Status.NO_SOLUTION:
        return bool(verdict.decided[client]) and not verdict.conflicts(client)
    return answer.complete


def _scalar_of(answer: Recovery) -> tuple[float, float]:
    """The scalar of the best solution, and how far it may be off."""
    best = answer.solutions[0]
    return best.scalar, max(best.high - best.scalar, best.scalar - best.low)


def _of_two_classes(answer: Recovery, classes: int) -> Recovery:
    """With two classes every batch has a gradient of rank one: another layer has to speak."""
    if classes > 2 or answer.status is not Status.UNIQUE:
        return answer
    witnesses = [piece.parameter for piece in answer.evidence if piece.single]
    if not witnesses:
        return _doubted(answer, Doubt.TWO_CLASSES.value)
    rests = f"that it is one sample rests on the gradient of {witnesses[0]}"
    return replace(answer, message=f"{answer.message}; {rests}")


def _with_reading(answer: Recovery, reading: Reading | None) -> Recovery:
    if reading is not None:
        words = explain_reading(reading, answer.label is not None)
        doubted = replace(_doubted(answer, words), readings=(reading,))
        if answer.label is not None:
            return doubted
        return replace(doubted, label=reading.label, scale=reading.scale)
    arbitrary = isinstance(answer.family, AnyLabel)
    if answer.status is Status.NO_SOLUTION:
        return answer
    if arbitrary and abs(answer.scalar or 0.0) < NEAR:
        return _doubted(answer, Doubt.SCALED_DOWN.value)
    return replace(answer, message=f"{answer.message}; {UNVOUCHED}")


def _doubted(answer: Recovery, words: str) -> Recovery:
    return replace(answer, status=Status.AMBIGUOUS, message=words, complete=False)
