"""The lowest point of a search, and the result that follows from it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from softleak.labels.classic.classic_result import ClassicOutcome, ClassicResult
from softleak.labels.classic.row import RowRatios
from softleak.labels.classic.scalar_objectives import ScalarObjective


@dataclass(frozen=True)
class Best:
    """This is the lowest point of a search.

    Attributes:
        scalar: the searched scalar ``s = coefficient × λ_r``.
        loss: the loss there.
        evaluations: the number of evaluations of the loss that the search took.
    """

    scalar: float
    loss: float
    evaluations: int

    def lower(self, other: Best) -> Best:
        """Return the lower of two points of one search, with the evaluations of both."""
        first = self if self.loss <= other.loss else other
        return Best(first.scalar, first.loss, self.evaluations + other.evaluations)


def answer(
    row: RowRatios, objective: ScalarObjective, outcome: ClassicOutcome, best: Best
) -> ClassicResult:
    """Return the result of a search; it has a label and a feature only if the search converged."""
    scalar = best.scalar / row.coefficient
    if outcome is not ClassicOutcome.CONVERGED:
        return ClassicResult(
            outcome, row.index, scalar, loss=best.loss, evaluations=best.evaluations
        )
    with torch.no_grad():
        label = objective.label(torch.tensor(best.scalar, dtype=torch.double)).double()
    feature = row.feature(best.scalar)
    return ClassicResult(outcome, row.index, scalar, label, feature, best.loss, best.evaluations)
