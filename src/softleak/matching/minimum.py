"""The contract of an optimiser: what it is given, and what it answers for many problems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from softleak.matching.problems import MatchingProblems
from softleak.matching.reconstruction import MatchStatus
from softleak.matching.stopping import Stopping

STATUSES = tuple(MatchStatus)


@dataclass(frozen=True, eq=False)
class Minimum:
    """This is the best iterates of P problems.

    Attributes:
        unknowns: the iterates (P, n) of the lowest loss.
        loss: that loss (P,).
        evaluations: how many evaluations each problem took, (P,).
        ending: how each problem ended (P,), as an index into ``STATUSES``.
    """

    unknowns: Tensor
    loss: Tensor
    evaluations: Tensor
    ending: Tensor

    @property
    def statuses(self) -> list[MatchStatus]:
        """Return how each problem ended."""
        return [STATUSES[int(index)] for index in self.ending]


@runtime_checkable
class Optimiser(Protocol):
    """This is a configured minimiser of many independent problems."""

    @property
    def evaluations(self) -> int:
        """How many evaluations of the loss and its gradient a problem may have."""
        ...

    @property
    def vectors(self) -> int:
        """How many vectors of unknowns the optimiser holds for one problem."""
        ...

    def part(self, first: float, last: float) -> Optimiser:
        """Return this optimiser limited to a part of its evaluations.

        Args:
            first: the fraction of the evaluations before which it begins, from 0 to 1.
            last: the fraction at which it ends, from ``first`` to 1.
        """
        ...

    def minimise(self, problems: MatchingProblems, start: Tensor, stopping: Stopping) -> Minimum:
        """Minimise every problem by itself.

        Args:
            problems: P problems. ``problems.evaluator()`` maps unknowns (P, n) to losses (P,) and
                their gradients (P, n); ``problems.select(rows)`` gives some of the problems.
            start: the first iterates (P, n).
            stopping: it is told of every evaluation and asked whether to go on.
        """
        ...
