"""Algorithm 1: L-BFGS on the searched scalar, from the positive side, then from the negative."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from softleak.head import Head
from softleak.labels.classic.best import Best, answer
from softleak.labels.classic.losses import Loss, Variance
from softleak.labels.classic.objectives import Evaluation, FullHead, Objective
from softleak.labels.classic.results import ClassicResult, Outcome
from softleak.labels.classic.row import Row
from softleak.share import GradientShare


@dataclass(frozen=True)
class Skip:
    """Off a plateau, as the published code does and the text does not say.

    When the last three losses agree to ``agreement`` of their mean, the scalar moves ``jump``
    away from zero instead of descending, and the next jump is twice as long.
    """

    jump: float = 0.5
    agreement: float = 1e-3

    def due(self, losses: list[float]) -> bool:
        """Whether the last three losses are one plateau."""
        last = losses[-3:]
        return len(last) == 3 and max(last) - min(last) < self.agreement * sum(last) / 3


@dataclass(frozen=True)
class LBFGSSearch:
    """Algorithm 1. The defaults are the text's (App. E); see ``presets`` for the published code's.

    ``coefficient`` divides the row (see ``Row``), so ``initial`` and ``bound`` are of the searched
    ``s = coefficient × λ_r``. The bound is on |s| and comes before the loss; as printed, ``λ_r >
    bound`` after it, it would never end the negative side. A step is up to 20 of torch's L-BFGS,
    with its default ``history``; of a single scalar the newest pair decides alone (it is the secant
    method), so a history of one takes the same steps in less time.
    """

    loss: Loss = field(default_factory=Variance)
    objective: Evaluation = FullHead
    lr: float = 0.5
    initial: float = 1.0
    coefficient: float = 4.0
    bound: float = 100.0
    iterations: int = 200  # half of them on each side
    threshold: float = 1e-9
    history: int = 100
    skip: Skip | None = None

    def __call__(
        self, model: nn.Module, share: GradientShare, *, head: str | Head | None = None
    ) -> ClassicResult:
        """The label behind one share."""
        row = Row.of(model, share, coefficient=self.coefficient, head=head)
        if row is None:
            return ClassicResult(Outcome.ZERO_GRADIENT)
        objective = self.objective(row, self.loss)
        outcome, best = self._descend(objective, self.initial)
        if outcome is not Outcome.CONVERGED:
            outcome, other = self._descend(objective, -self.initial)
            best = best.lower(other)
        return answer(row, objective, outcome, best)

    def _descend(self, objective: Objective, start: float) -> tuple[Outcome, Best]:
        """One side: at most half the iterations from ``start``."""
        descent = _Descent(objective, start, self.lr, self.history)
        losses: list[float] = []
        jump = math.copysign(self.skip.jump, start) if self.skip else 0.0
        for _ in range(self.iterations // 2):
            losses.append(float(descent.evaluate()))
            if not abs(descent.at) <= self.bound:
                return Outcome.OUT_OF_BOUND, descent.best
            descent.remember(losses[-1])
            if losses[-1] < self.threshold:
                return Outcome.CONVERGED, descent.best
            if self.skip and self.skip.due(losses):
                descent.move(jump)
                jump *= 2
            else:
                descent.step()
        return Outcome.EXHAUSTED, descent.best


class _Descent:
    """torch's L-BFGS on one scalar, and the lowest point it has come by."""

    def __init__(self, objective: Objective, start: float, lr: float, history: int) -> None:
        self.objective = objective
        self.scalar = torch.tensor([start], dtype=torch.double, requires_grad=True)
        self.optimiser = torch.optim.LBFGS([self.scalar], lr=lr, history_size=history)
        self.evaluations = 0
        self.lowest = (start, math.inf)

    @property
    def at(self) -> float:
        return float(self.scalar.detach())

    @property
    def best(self) -> Best:
        return Best(*self.lowest, self.evaluations)

    def evaluate(self) -> Tensor:
        self.evaluations += 1
        self.optimiser.zero_grad()
        with torch.enable_grad():
            loss = self.objective(self.scalar)[0]
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def remember(self, loss: float) -> None:
        if loss < self.lowest[1]:
            self.lowest = (self.at, loss)

    def step(self) -> None:
        self.optimiser.step(self.evaluate)  # type: ignore[no-untyped-call]

    def move(self, jump: float) -> None:
        with torch.no_grad():
            self.scalar += jump
