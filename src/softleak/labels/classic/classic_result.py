"""The result of every classic method; it has no label unless the method converged."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torch import Tensor


class ClassicOutcome(Enum):
    """This is how a method ended. ``CONVERGED`` means the method's own criterion, which is no
    proof.
    """

    CONVERGED = "the method's own criterion is met"
    OUT_OF_BOUND = "the search left its bound before the loss was low enough"
    EXHAUSTED = "the search ended before the loss was low enough"
    ZERO_GRADIENT = "the head's gradient is zero: the label equals the model's own prediction"
    UNDECIDED = "the signs of the rows single out no class"


@dataclass(frozen=True, eq=False)
class ClassicResult:
    """This is what a classic method found.

    Attributes:
        outcome: how the method ended.
        row: r, the row that stands for the feature.
        scalar: ``λ_r = 1 / (p_r − y_r)``. For a search that did not converge, the best it saw.
        label: (C,) the label in float64; None unless the method converged.
        feature: (I,) the feature in float64; None unless the method converged.
        loss: the loss at the scalar.
        evaluations: the number of evaluations of the loss.
    """

    outcome: ClassicOutcome
    row: int | None = None
    scalar: float | None = None
    label: Tensor | None = None
    feature: Tensor | None = None
    loss: float | None = None
    evaluations: int = 0

    @property
    def converged(self) -> bool:
        """Whether there is a label: the loss is below the threshold, or the rule applied."""
        return self.outcome is ClassicOutcome.CONVERGED
