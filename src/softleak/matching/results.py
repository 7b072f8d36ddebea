"""What a reconstruction answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from torch import Tensor


class MatchStatus(Enum):
    """How a reconstruction ended. None of them is a proof: the loss says how near it came."""

    CONVERGED = "the loss hardly falls any more"
    EXHAUSTED = "all evaluations were used"
    EXPLAINED = "the start explains the gradient as well as its rounding allows, and is kept"
    OUT_OF_TIME = "out of time; the best iterate so far is kept"
    INTERRUPTED = "interrupted; the best iterate so far is kept"
    DIVERGED = "the loss became NaN or infinite; the best iterate before that is kept"
    NON_FINITE = "the share holds NaN or infinity: it matches nothing"
    ZERO_GRADIENT = "every gradient is zero: any input the model is sure of matches it"
    NO_LABEL = "no label or feature was recovered to reconstruct with"


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """An input whose gradient comes near to the share's, and the label it was found with.

    ``input`` and ``label`` are None if nothing could be matched. ``misfit`` is what remains of the
    gradient, relative to its size: how near it came, priors left aside. ``evaluations`` counts
    those of the loss and its gradient, over all attempts.
    """

    status: MatchStatus
    input: Tensor | None = None
    label: Tensor | None = None
    loss: float = float("inf")
    misfit: float = float("inf")
    evaluations: int = 0


def pass_on_interrupt(found: Iterable[Reconstruction]) -> None:
    """Raise the Ctrl-C that ``reconstruct`` kept to itself, where half an answer is none."""
    if any(one.status is MatchStatus.INTERRUPTED for one in found):
        raise KeyboardInterrupt
