"""Algorithm 2: a swarm on growing intervals, each first positive, then mirrored."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

from softleak.errors import SoftleakError
from softleak.head import Head
from softleak.labels.classic.best import Best, answer
from softleak.labels.classic.losses import Loss, Variance
from softleak.labels.classic.objectives import Evaluation, FullHead
from softleak.labels.classic.results import ClassicResult, Outcome
from softleak.labels.classic.row import Row
from softleak.labels.classic.swarm import Swarm
from softleak.share import GradientShare


@dataclass(frozen=True)
class PSOSearch:
    """Algorithm 2. The defaults are the text's (App. E); see ``presets`` for the published code's.

    The text gives neither ``widths`` nor ``bound``: these are the first and last of its code. Each
    width is used once, the last one until the bound; intervals overlap by ``overlap``. As with
    ``LBFGSSearch``, all of them are of ``coefficient × λ_r``. The search ends after the first
    interval with a loss below ``threshold``; with a threshold of zero it visits them all.
    """

    loss: Loss = field(default_factory=Variance)
    objective: Evaluation = FullHead
    swarm: Swarm = field(default_factory=Swarm)
    initial: float = 1.0
    widths: tuple[float, ...] = (5.0,)
    overlap: float = 0.3
    coefficient: float = 4.0
    bound: float = 70.0
    threshold: float = 1e-9
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.widths or min(self.widths) <= 0:
            raise SoftleakError(f"expected at least one width, all positive, got {self.widths=}")

    def __call__(
        self, model: nn.Module, share: GradientShare, *, head: str | Head | None = None
    ) -> ClassicResult:
        """The label behind one share; equal seeds give equal answers."""
        row = Row.of(model, share, coefficient=self.coefficient, head=head)
        if row is None:
            return ClassicResult(Outcome.ZERO_GRADIENT)
        objective = self.objective(row, self.loss)
        generator = torch.Generator().manual_seed(self.seed)
        best = Best(math.nan, math.inf, 0)
        for low, high in self.intervals():
            best = best.lower(self.swarm.minimise(objective, low, high, generator))
            if best.loss < self.threshold:
                return answer(row, objective, Outcome.CONVERGED, best)
        return answer(row, objective, Outcome.OUT_OF_BOUND, best)

    def intervals(self) -> Iterator[tuple[float, float]]:
        """``[low, high]`` of every swarm, in order."""
        lower = self.initial
        for number in itertools.count():
            upper = lower + self.widths[min(number, len(self.widths) - 1)]
            if not upper < self.bound:
                return
            yield lower - self.overlap, upper
            yield -upper, self.overlap - lower
            lower = upper
