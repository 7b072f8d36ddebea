"""This module names the label that fits an update best, where a continuum of labels fits.

The weights of a checkpoint are rounded, and at a small learning rate their rounding is a thousandth
of the update. A range of scalars then fits to within rounding. The middle of their labels has the
smallest possible error, but the true label is far more often at the scalar that fits best: the one
at which the update is most likely. Near the end of the stable steps rounding may move a label by
more than labels can differ. Any scalar fits there, and none of them is likely.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from softleak.families import Family
from softleak.results import Candidate, Recovery, Status


@dataclass(frozen=True)
class BestFitSettings:
    """These settings say of which answers the label moves."""

    same_scale: float = 1e-6  # relative: the share counts as the gradient itself
    least_rounding: float = 1e-12  # L1: labels are not known better


BEST_FIT = BestFitSettings()


def is_open(answer: Recovery) -> bool:
    """Return whether several labels fit, and neither a factor nor another layer decides."""
    if answer.status is not Status.AMBIGUOUS or not answer.solutions:
        return False
    decided = any(evidence.holds for evidence in answer.evidence)
    return abs(answer.scale - 1) <= BEST_FIT.same_scale and not decided


def _unlikely(one: Candidate) -> float:
    """Return how unlikely a candidate makes the update, if its errors are those of rounding."""
    return one.misfit**2 / 2 + math.log(max(one.rounding, BEST_FIT.least_rounding))


def best_fitting(answer: Recovery, family: Family) -> Recovery:
    """Return the answer with the label that fits best, its feature, and the error it may have.

    Only an AMBIGUOUS answer changes. Its message and everything else that fits stay.

    Args:
        answer: what was recovered.
        family: the family that was searched.
    """
    if not is_open(answer) or answer.feature is None or answer.scalar is None:
        return answer
    best = min(answer.solutions, key=_unlikely)
    label = family.project(best.label).clamp_min(0)
    label = label / label.sum()
    every = torch.cat([one.labels for one in answer.solutions])
    rounding = max(one.rounding for one in answer.solutions)
    ends = [abs(best.high - best.scalar), abs(best.scalar - best.low)]
    return replace(
        answer,
        label=label,
        feature=answer.feature * (answer.scalar / best.scalar),
        scalar=best.scalar,
        error=float((every - label).abs().sum(-1).max()) + rounding,
        feature_error=max(answer.feature_error, max(ends) / abs(best.scalar)),
    )
