"""This module names the label that fits an update best, where a continuum of labels fits.

The weights of a checkpoint are rounded, and at a small learning rate their rounding is a thousandth
of the update. A range of scalars then fits to within rounding. The middle of their labels has the
smallest possible error, but the true label is far more often at the scalar that fits best.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from softleak.families import Family
from softleak.results import Recovery, Status


@dataclass(frozen=True)
class BestFitSettings:
    """These settings say of which answers the label moves."""

    same_scale: float = 1e-6  # relative: the share counts as the gradient itself


BEST_FIT = BestFitSettings()


def best_fitting(answer: Recovery, family: Family) -> Recovery:
    """Return the answer with the label that fits best, its feature, and the error it may have.

    Only an AMBIGUOUS answer changes. Its message and everything else that fits stay.

    Args:
        answer: what was recovered.
        family: the family that was searched.
    """
    open_ = answer.status is Status.AMBIGUOUS and bool(answer.solutions)
    if not open_ or answer.feature is None or answer.scalar is None:
        return answer
    if abs(answer.scale - 1) > BEST_FIT.same_scale or any(e.holds for e in answer.evidence):
        return answer  # the scalar is that of a factor, or another layer gave it
    best = min(answer.solutions, key=lambda one: one.misfit)
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
