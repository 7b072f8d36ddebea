"""This module holds Algorithm 1: L-BFGS on the searched scalar, from the positive side, then the
negative one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from softleak.head import Head
from softleak.labels.classic.best import Best, answer
from softleak.labels.classic.classic_result import ClassicOutcome, ClassicResult
from softleak.labels.classic.losses import Loss, Variance
from softleak.labels.classic.row import RowRatios
from softleak.labels.classic.scalar_objectives import Evaluation, FullHead, ScalarObjective
from softleak.share import GradientShare


@dataclass(frozen=True)
class Skip:
    """A way off plateaus, which the published code has and the text does not mention.

    Where the last three losses agree, the scalar jumps away from zero instead of descending. The
    next jump is twice as long.

    Attributes:
        jump: the length of the first jump.
        agreement: losses agree if they differ by less than this part of their mean.
    """

    jump: float = 0.5
    agreement: float = 1e-3

    def due(self, losses: list[float]) -> bool:
        """Return whether the last three losses form a plateau."""
        last = losses[-3:]
        return len(last) == 3 and max(last) - min(last) < self.agreement * sum(last) / 3


@dataclass(frozen=True)
class LBFGSSearch:
    """Algorithm 1, with the settings of the text (App. E); ``presets`` has the published code's.

    The bound is compared with |s| before the loss is looked at. As printed (``λ_r > bound``, after
    the loss) it would never end the negative side. A step consists of up to 20 steps of torch's
    L-BFGS. For a single scalar L-BFGS is the secant method, and the newest pair decides alone.

    Attributes:
        loss: the loss of a pseudo label.
        objective: how the loss of a scalar is evaluated.
        lr: the learning rate.
        initial: the start, of the searched scalar ``s = coefficient × λ_r``.
        coefficient: what the row is divided by; see ``RowRatios``.
        bound: the largest |s|.
        iterations: the number of steps, half of them on each side.
        threshold: the loss below which the search has converged.
        history: torch's history of L-BFGS. One takes the same steps in less time.
        skip: how plateaus are left, if at all.
    """

    loss: Loss = field(default_factory=Variance)
    objective: Evaluation = FullHead
    lr: float = 0.5
    initial: float = 1.0
    coefficient: float = 4.0
    bound: float = 100.0
    iterations: int = 200
    threshold: float = 1e-9
    history: int = 100
    skip: Skip | None = None

    def __call__(
        self, model: nn.Module, share: GradientShare, *, head: str | Head | None = None
    ) -> ClassicResult:
        """Search the label behind one share.

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
        outcome, best = self._descend(objective, self.initial)
        if outcome is not ClassicOutcome.CONVERGED:
            outcome, other = self._descend(objective, -self.initial)
            best = best.lower(other)
        return answer(row, objective, outcome, best)

    def _descend(self, objective: ScalarObjective, start: float) -> tuple[ClassicOutcome, Best]:
        """Descend on one side, with at most half the iterations, from ``start``."""
        descent = _Descent(objective, start, self.lr, self.history)
        losses: list[float] = []
        jump = math.copysign(self.skip.jump, start) if self.skip else 0.0
        for _ in range(self.iterations // 2):
            losses.append(float(descent.evaluate()))
            if not abs(descent.at) <= self.bound:
                return ClassicOutcome.OUT_OF_BOUND, descent.best
            descent.remember(losses[-1])
            if losses[-1] < self.threshold:
                return ClassicOutcome.CONVERGED, descent.best
            if self.skip and self.skip.due(losses):
                descent.move(jump)
                jump *= 2
            else:
                descent.step()
        return ClassicOutcome.EXHAUSTED, descent.best


class _Descent:
    """torch's L-BFGS on one scalar, with the lowest point that it has visited."""

    def __init__(self, objective: ScalarObjective, start: float, lr: float, history: int) -> None:
        self.objective = objective
        self.scalar = torch.tensor([start], dtype=torch.double, requires_grad=True)
        self.optimiser = torch.optim.LBFGS([self.scalar], lr=lr, history_size=history)
        self.evaluations = 0
        self.lowest = (start, math.inf)

    @property
    def at(self) -> float:
        """Return the present scalar."""
        return float(self.scalar.detach())

    @property
    def best(self) -> Best:
        """Return the lowest point so far."""
        return Best(*self.lowest, self.evaluations)

    def evaluate(self) -> Tensor:
        """Return the loss at the present scalar, and leave its gradient there."""
        self.evaluations += 1
        self.optimiser.zero_grad()
        with torch.enable_grad():
            loss = self.objective(self.scalar)[0]
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def remember(self, loss: float) -> None:
        """Keep the present scalar if its loss is the lowest so far."""
        if loss < self.lowest[1]:
            self.lowest = (self.at, loss)

    def step(self) -> None:
        """Take one step of torch's L-BFGS."""
        self.optimiser.step(self.evaluate)  # type: ignore[no-untyped-call]

    def move(self, jump: float) -> None:
        """Move the scalar without descending."""
        with torch.no_grad():
            self.scalar += jump
