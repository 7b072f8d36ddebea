"""This module holds several attempts at each problem share the evaluations of one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.errors import OptionError
from softleak.matching.minimum import Minimum, Optimiser
from softleak.matching.problems import MatchingProblems
from softleak.matching.stopping import Stopping


@dataclass(frozen=True)
class AttemptSettings:
    """How several attempts share the evaluations of one, and when a start needs none.

    Attributes:
        trial: the fraction of the evaluations that each of several attempts has before the best
            one goes on with what is left.
        rounding: a start whose misfit is below so many roundings of the dtype explains the
            gradient, and a gain below that is no gain.
    """

    trial: float = 0.1
    rounding: float = 16.0

    def __post_init__(self) -> None:
        if not 0 < self.trial < 1:
            raise OptionError(f"expected a trial between 0 and 1, got {self.trial}")

    @property
    def most_restarts(self) -> int:
        """The largest number of restarts that leaves the best attempt something to go on with."""
        return math.ceil(round(1 / self.trial, 6)) - 2

    def minimise(
        self,
        optimiser: Optimiser,
        problems: MatchingProblems,
        starts: Sequence[Tensor],
        stopping: Stopping,
    ) -> Minimum:
        """Run all attempts for a while, then the best one of each problem to the end.

        Args:
            optimiser: the way to minimise, with the evaluations that all attempts share.
            problems: P problems.
            starts: the first iterates (P, n) of each attempt.
            stopping: what may end the run.
        """
        count, first = len(starts), starts[0]
        if count == 1:
            return optimiser.minimise(problems, first, stopping)
        rows = torch.arange(len(first), device=first.device)
        tried = optimiser.part(0.0, self.trial).minimise(
            problems.select(rows.repeat(count)), torch.cat([*starts]), stopping
        )
        best = tried.loss.nan_to_num(torch.inf).view(count, -1).argmin(0)
        rest = optimiser.part(self.trial * count, 1.0)
        minimum = rest.minimise(problems, tried.unknowns[best * len(first) + rows], stopping)
        spent = tried.evaluations.view(count, -1).sum(0)
        return replace(minimum, evaluations=minimum.evaluations + spent)
