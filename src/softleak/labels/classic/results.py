"""What every classic method answers: one frozen type, with no label unless the method converged."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torch import Tensor


class Outcome(Enum):
    """How a method ended. ``CONVERGED`` is the method's own criterion, not a proof."""

    CONVERGED = "the method's own criterion is met"
    OUT_OF_BOUND = "the search left its bound before the loss was low enough"
    EXHAUSTED = "the search ended before the loss was low enough"
    ZERO_GRADIENT = "the head's gradient is zero: the label equals the model's own prediction"
    UNDECIDED = "the signs of the rows single out no class"


@dataclass(frozen=True, eq=False)
class ClassicResult:
    """The label (C,) and feature (I,) of a classic method, float64; None unless it converged.

    ``row`` is r, ``scalar`` is ``λ_r = 1 / (p_r − y_r)`` and ``loss`` the loss there; a search
    that did not converge tells the best scalar it saw. ``evaluations`` counts those of the loss.
    """

    outcome: Outcome
    row: int | None = None
    scalar: float | None = None
    label: Tensor | None = None
    feature: Tensor | None = None
    loss: float | None = None
    evaluations: int = 0

    @property
    def converged(self) -> bool:
        """Whether there is a label: the loss fell below the threshold, or the rule applied."""
        return self.outcome is Outcome.CONVERGED
