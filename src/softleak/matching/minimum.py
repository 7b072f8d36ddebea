"""What an optimiser answers for many problems, and what it is given to know when to stop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from softleak.matching.problems import Problems
from softleak.matching.results import MatchStatus
from softleak.matching.watch import Watch

STATUSES = tuple(MatchStatus)


@dataclass(frozen=True, eq=False)
class Minimum:
    """The unknowns (P, n) of the lowest loss (P,) seen, after so many evaluations (P,)."""

    unknowns: Tensor
    loss: Tensor
    evaluations: Tensor
    ending: Tensor  # (P,) an index into STATUSES


class Optimiser(Protocol):
    """A configured way down."""

    @property
    def evaluations(self) -> int:
        """How many evaluations of the loss and its gradient a problem may have."""
        ...

    @property
    def vectors(self) -> int:
        """How many vectors of unknowns it holds for a problem."""
        ...

    def part(self, first: float, last: float) -> Optimiser:
        """It, from one part of its evaluations to another."""
        ...

    def minimise(self, problems: Problems, start: Tensor, watch: Watch) -> Minimum:
        """From ``start`` (P, n); every problem by itself."""
        ...
