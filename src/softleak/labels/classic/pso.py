"""This module holds Algorithm 2: a swarm on intervals ever further from zero, each positive and
then mirrored.
"""

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
from softleak.labels.classic.classic_result import ClassicOutcome, ClassicResult
from softleak.labels.classic.losses import Loss, Variance
from softleak.labels.classic.row import RowRatios
from softleak.labels.classic.scalar_objectives import Evaluation, FullHead
from softleak.labels.classic.swarm import Swarm
from softleak.share import GradientShare


@dataclass(frozen=True)
class PSOSearch:
    """Algorithm 2, with the settings of the text (App. E); ``presets`` has the published code's.

    The text gives neither ``widths`` nor ``bound``; these are the first and the last of its code.
    All lengths are of the searched scalar ``s = coefficient × λ_r``.

    Attributes:
        loss: the loss of a pseudo label.
        objective: how the loss of a scalar is evaluated.
        swarm: the optimiser on each interval.
        initial: where the first interval begins.
        widths: the widths of the intervals. Each is used once, the last one until the bound.
        overlap: how far an interval reaches into the one before.
        coefficient: what the row is divided by; see ``RowRatios``.
        bound: where the search ends, on |s|.
        threshold: the search ends after the first interval with a lower loss. With a threshold of
            zero it visits all of them.
        seed: the seed of the swarms.
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
        """Search the label behind one share; equal seeds give equal answers.

        Args:
            model: the classifier the gradient was computed with.
            share: what the client sent.
            head: the name of the last linear layer, or a ``Head`` that the caller vouches for.

        Returns:
            The label and the feature if the search converged, else the best scalar it saw.
        """
        row = RowRatios.of(model, share, coefficient=self.coefficient, head=head)
        if row is None:
            return ClassicResult(ClassicOutcome.ZERO_GRADIENT)
        objective = self.objective(row, self.loss)
        generator = torch.Generator().manual_seed(self.seed)
        best = Best(math.nan, math.inf, 0)
        for low, high in self.intervals():
            best = best.lower(self.swarm.minimise(objective, low, high, generator))
            if best.loss < self.threshold:
                return answer(row, objective, ClassicOutcome.CONVERGED, best)
        return answer(row, objective, ClassicOutcome.OUT_OF_BOUND, best)

    def intervals(self) -> Iterator[tuple[float, float]]:
        """Yield the interval ``[low, high]`` of every swarm, in order."""
        lower = self.initial
        for number in itertools.count():
            upper = lower + self.widths[min(number, len(self.widths) - 1)]
            if not upper < self.bound:
                return
            yield lower - self.overlap, upper
            yield -upper, self.overlap - lower
            lower = upper
