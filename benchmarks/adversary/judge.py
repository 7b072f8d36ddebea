"""Whether an answer is right. The truth is read here and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum

import torch
from torch import Tensor

import softleak as sl
from benchmarks.adversary.truth import Truth

NEAR = 2e-3  # how far in L1 the truth may be from a set it is said to lie in
GROSS = 1e-3  # a label further off than this is wrong, not only its bound
# Words by which a message says that it takes something for granted.
SCALE = re.compile(r"scale|gradient itself|factor|learning rate", re.IGNORECASE)
LOSS = re.compile(r"cross-entropy|loss", re.IGNORECASE)
STEPS = re.compile(r"\bsteps\b", re.IGNORECASE)
ALARM = re.compile(r"altered", re.IGNORECASE)
OWN = re.compile(r"own prediction")  # a message that names this as another cause is no alarm


class Outcome(Enum):
    """What an answer turned out to be, in the words of the table."""

    RIGHT = "UNIQUE, right"
    WRONG_LABEL = "UNIQUE, wrong label"
    WRONG_BOUND = "UNIQUE, error above its bound"
    APART = "undetectable, assumption stated"
    IN_SET = "AMBIGUOUS, truth in the set"
    MISSED = "complete set without the truth"
    OPEN = "AMBIGUOUS, set not complete"
    NO_SOLUTION = "NO_SOLUTION"
    FALSELY_NONE = "NO_SOLUTION, but there is one"
    NOT_SINGLE = "NOT_SINGLE, right"
    FALSELY_SEVERAL = "NOT_SINGLE, too many"
    PROBABLE = "PROBABLE"
    GUESS = "GUESS"
    ZERO_GRADIENT = "ZERO_GRADIENT"
    REFUSED = "refused"
    TRACEBACK = "traceback"
    SLOW = "over 30 s"


FAILURES = (Outcome.WRONG_LABEL, Outcome.WRONG_BOUND, Outcome.MISSED, Outcome.TRACEBACK)


def judge(recovery: sl.Recovery, truth: Truth, *, told: bool, named: bool = False) -> Outcome:
    """Classify an answer.

    ``told`` says that the caller declared the scale unknown, ``named`` that the label's family
    was given.
    """
    if recovery.status is sl.Status.UNIQUE:
        return _unique(recovery, truth, told)
    if recovery.status is sl.Status.AMBIGUOUS:
        return _ambiguous(recovery, truth, told)
    if recovery.status is sl.Status.NOT_SINGLE:
        several_steps = truth.steps if STEPS.search(recovery.message) else 1
        right = recovery.samples <= truth.samples * several_steps
        return Outcome.NOT_SINGLE if right else Outcome.FALSELY_SEVERAL
    if recovery.status is sl.Status.NO_SOLUTION and truth.clean and (named or truth.simple):
        return Outcome.FALSELY_NONE
    return Outcome[recovery.status.name]


def label_error(recovery: sl.Recovery, labels: Iterable[Tensor]) -> float:
    """The L1 distance of the answer from the nearest of some labels."""
    if recovery.label is None:
        return float("inf")
    found = recovery.label.double()
    return min((float((found - y).abs().sum()) for y in labels), default=float("inf"))


def false_alarm(recovery: sl.Recovery, truth: Truth) -> bool:
    """Whether a clean share was called altered."""
    said = ALARM.search(recovery.message) and not OWN.search(recovery.message)
    return truth.clean and bool(said)


def _unique(recovery: sl.Recovery, truth: Truth, told: bool) -> Outcome:
    error = label_error(recovery, truth.labels)
    if error <= recovery.error:
        return Outcome.RIGHT
    if _stated(recovery, truth) and _undetectable(recovery, truth, told):
        return Outcome.APART
    return Outcome.WRONG_LABEL if error > GROSS else Outcome.WRONG_BOUND


def _ambiguous(recovery: sl.Recovery, truth: Truth, told: bool) -> Outcome:
    if any(_in_set(recovery, y) for y in truth.labels):
        return Outcome.IN_SET
    if not recovery.complete:
        return Outcome.OPEN
    covered = told and not truth.negative and not truth.other_loss
    hidden = truth.undeclared and not covered and not truth.simple
    supported = any(_in_set(recovery, y) for y in truth.readings or ())
    return Outcome.APART if _stated(recovery, truth) and (hidden or supported) else Outcome.MISSED


def _undetectable(recovery: sl.Recovery, truth: Truth, told: bool) -> bool:
    """Whether no numbers tell the answer from the truth, nor is there a simpler reading of them.

    A scale that was declared unknown covers a factor, not another loss. The focal loss of a soft
    label, for one, has the gradient of a cross-entropy whose label is not simple, and at an unknown
    factor no numbers tell that label from a simple one on the same segment.
    """
    if label_error(recovery, truth.readings or ()) <= recovery.error:
        return True
    covered = told and not truth.other_loss
    return truth.undeclared and not covered and not truth.simple


def _stated(recovery: sl.Recovery, truth: Truth) -> bool:
    """Whether the message names the assumption that does not hold."""
    words = LOSS if truth.other_loss else SCALE
    return words.search(recovery.message) is not None


def _in_set(recovery: sl.Recovery, y: Tensor) -> bool:
    return any(
        _on_path(one.labels.double(), y, max(NEAR, one.rounding)) for one in recovery.solutions
    )


def _on_path(path: Tensor, y: Tensor, near: float) -> bool:
    """Whether a label is near a path of labels (S, C), or between two that follow each other."""
    if float((path - y).abs().sum(-1).min()) <= near:
        return True
    if len(path) < 2:
        return False
    start, step = path[:-1], path[1:] - path[:-1]
    part = ((y - start) * step).sum(-1) / step.square().sum(-1).clamp_min(1e-300)
    nearest = start + part.clamp(0, 1)[:, None] * step
    if float((nearest - y).abs().sum(-1).min()) <= near:
        return True
    low, high = torch.minimum(path[:-1], path[1:]), torch.maximum(path[:-1], path[1:])
    return bool(((y >= low - NEAR) & (y <= high + NEAR)).all(-1).any())
