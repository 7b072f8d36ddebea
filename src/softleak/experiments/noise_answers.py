"""Answers to a noisy share as Table 5 counts them: by the scalar λ_r of the row that is read."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.experiments.attacked_network import AttackedNetwork
from softleak.head import Head
from softleak.labels.classic import PUBLISHED_NOISE, Vectorised
from softleak.labels.classic.row import RowRatios
from softleak.results import Recovery
from softleak.share import GradientShare
from softleak.sweep import Measures

SCALAR_TOLERANCE = 1.0  # the paper counts a success if |λ_r − λ_r*| is below this


@dataclass(frozen=True, eq=False)
class Answer:
    """What an attack says of one share.

    Attributes:
        scalar: the scalar λ_r; infinite if the attack found nothing.
        label: the label (C,); None if the attack found nothing.
        status: the status of the attack in a word.
    """

    scalar: float
    label: Tensor | None
    status: str


def chosen_row(share: GradientShare, head: Head) -> int:
    """Return the paper's r, the row of the head's gradient whose sum has the largest size."""
    return int(share[head.weight_name].sum(1).abs().argmax())


def read(recovery: Recovery, head: Head, row: int) -> Answer:
    """Return what a recovery says of λ_r.

    Args:
        recovery: the recovered label and feature.
        head: the last linear layer of the model.
        row: the row r that the scalar belongs to.
    """
    if recovery.label is None or recovery.feature is None:
        return Answer(math.inf, None, recovery.status.name)
    p = torch.softmax(head.logits(recovery.feature[None])[0] + head.b, -1)
    return Answer(1 / float(p[row] - recovery.label[row]), recovery.label, recovery.status.name)


def pso(target: AttackedNetwork, share: GradientShare) -> Answer:
    """Return the answer of the paper's particle swarm with its published settings.

    It is the best scalar of all intervals, and the label there.
    """
    search = replace(PUBLISHED_NOISE, objective=Vectorised)
    best = search(target.model, share, head=target.head)
    seen = RowRatios.of(target.model, share, head=target.head)
    if best.scalar is None or seen is None:
        return Answer(math.inf, None, best.outcome.name)
    scalar = torch.tensor(best.scalar, dtype=torch.double)
    return Answer(best.scalar, Vectorised(seen, search.loss).label(scalar), best.outcome.name)


def scored(answer: Answer, scalar_true: float, y_true: Tensor) -> Measures:
    """Return how an answer compares with the truth.

    Args:
        answer: what an attack said.
        scalar_true: the true scalar λ_r*.
        y_true: the true label (C,).
    """
    gap = abs(answer.scalar - scalar_true)
    label = answer.label
    return {
        "status": answer.status,
        "close": gap < SCALAR_TOLERANCE,
        # The paper's L_s is a mean over successes, as its code computes it.
        "gap": gap if gap < SCALAR_TOLERANCE else None,
        "class": label is not None and int(label.argmax()) == int(y_true.argmax()),
        "L1": None if label is None else float((label - y_true).abs().sum()),
    }
