"""Where a search ended, and the answer that means."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from softleak.labels.classic.objectives import Objective
from softleak.labels.classic.results import ClassicResult, Outcome
from softleak.labels.classic.row import Row


@dataclass(frozen=True)
class Best:
    """The lowest point of a search, and how many evaluations of the loss it took."""

    scalar: float
    loss: float
    evaluations: int

    def lower(self, other: Best) -> Best:
        """The lower of two ends of one search."""
        first = self if self.loss <= other.loss else other
        return Best(first.scalar, first.loss, self.evaluations + other.evaluations)


def answer(row: Row, objective: Objective, outcome: Outcome, best: Best) -> ClassicResult:
    """The label and the feature at the best scalar, if the search converged."""
    scalar = best.scalar / row.coefficient
    if outcome is not Outcome.CONVERGED:
        return ClassicResult(
            outcome, row.index, scalar, loss=best.loss, evaluations=best.evaluations
        )
    with torch.no_grad():
        label = objective.label(torch.tensor(best.scalar, dtype=torch.double)).double()
    feature = row.feature(best.scalar)
    return ClassicResult(outcome, row.index, scalar, label, feature, best.loss, best.evaluations)
