"""The settings of the published code, where it differs from the text.

The defaults of the searches are those of the text: coefficient 4, 200 particles, 30 iterations and
no skip. The code has ``Skip``, 500 particles, 40 iterations, wider intervals, and coefficient 2 for
mixup.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from softleak.core.errors import SoftleakError
from softleak.core.head import Head
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.paper.classic.methods import (
    Best,
    ClassicOutcome,
    ClassicResult,
    Evaluation,
    FullHead,
    Loss,
    RowRatios,
    ScalarObjective,
    Variance,
    answer,
)


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


@dataclass(frozen=True)
class Swarm:
    """A swarm of particles, each drawn to the best point it has seen and to the best of all.

        v ← inertia v + own r₁ (its best − x) + shared r₂ (the best − x),   x ← x + v

    with ``r₁, r₂ ~ U(0, 1)``. Particles start uniformly in ``[low, high]``, with velocities up to
    its width. A particle that would leave the interval is held at its end. The sizes are the text's
    (App. E). The weights are those of scikit-opt 0.6, which the published code uses.

    Attributes:
        particles: the number of particles.
        iterations: the number of moves.
        inertia: the part of its velocity that a particle keeps.
        own: the pull towards the best point that the particle has seen.
        shared: the pull towards the best point that any particle has seen.
    """

    particles: int = 200
    iterations: int = 30
    inertia: float = 0.8
    own: float = 0.5
    shared: float = 0.5

    def minimise(
        self,
        loss: Callable[[Tensor], Tensor],
        low: float,
        high: float,
        generator: torch.Generator,
    ) -> Best:
        """Return the lowest point that the swarm finds in ``[low, high]``.

        Args:
            loss: the function to minimise; it maps points (S,) to losses (S,).
            low: the lower end of the interval.
            high: the upper end.
            generator: the source of all randomness.
        """
        x = low + (high - low) * self._draw(generator)
        v = (high - low) * (2 * self._draw(generator) - 1)
        best_x, best = x, _losses(loss, x)
        for _ in range(self.iterations):
            leader = best_x[best.argmin()]
            pull = self.own * self._draw(generator) * (best_x - x)
            v = self.inertia * v + pull + self.shared * self._draw(generator) * (leader - x)
            x = (x + v).clamp(low, high)
            here = _losses(loss, x)
            better = here < best
            best_x, best = torch.where(better, x, best_x), torch.where(better, here, best)
        first = best.argmin()
        looked = self.particles * (self.iterations + 1)
        return Best(float(best_x[first]), float(best[first]), looked)

    def _draw(self, generator: torch.Generator) -> Tensor:
        """Return one uniform number per particle."""
        return torch.rand(self.particles, generator=generator, dtype=torch.double)


def _losses(loss: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return the losses at ``x``. A point where the loss is undefined never leads the swarm."""
    with torch.no_grad():
        return loss(x).to(x).nan_to_num(nan=float("inf"))


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


@dataclass(frozen=True)
class LBFGSThenPSO:
    """Algorithm 1, followed by Algorithm 2 if it did not converge.

    A false minimum below the threshold ends the search, because nothing but the truth would tell it
    from the right one.

    Attributes:
        lbfgs: the search that is tried first.
        pso: the search that is tried if the first did not converge.
    """

    lbfgs: LBFGSSearch = field(default_factory=LBFGSSearch)
    pso: PSOSearch = field(default_factory=PSOSearch)

    def __call__(
        self, model: nn.Module, share: GradientShare, *, head: str | Head | None = None
    ) -> ClassicResult:
        """Search the label behind one share.

        Args:
            model: the classifier the gradient was computed with.
            share: what the client sent.
            head: the name of the last linear layer, or a ``Head`` that the caller vouches for.

        Returns:
            The result of the search that converged, or of the second; evaluations are of both.
        """
        share.check_finite()
        ready = Subject.of(model, share.input_shape, head=head).head
        first = self.lbfgs(model, share, head=ready)
        if first.converged or first.outcome is ClassicOutcome.ZERO_GRADIENT:
            return first
        second = self.pso(model, share, head=ready)
        return replace(second, evaluations=first.evaluations + second.evaluations)


_SWARM = Swarm(particles=500, iterations=40)

# The intervals end at 6, 10, 30 and 50. The next would end at the bound, which is not below it.
PUBLISHED_SMOOTHING = LBFGSThenPSO(
    LBFGSSearch(skip=Skip()),
    PSOSearch(swarm=_SWARM, widths=(5.0, 4.0, 20.0)),
)

# The intervals end at 6, 16 and 66.
PUBLISHED_MIXUP = LBFGSThenPSO(
    LBFGSSearch(loss=Variance(2), coefficient=2.0, skip=Skip()),
    PSOSearch(loss=Variance(2), coefficient=2.0, swarm=_SWARM, widths=(5.0, 10.0, 50.0)),
)

# For Table 5: with noise no loss is below 1e-9, so the best of all intervals is taken. It is
# found in ``scalar`` and ``loss`` of a result that has not converged by its own criterion.
PUBLISHED_NOISE = PSOSearch(coefficient=1.0, widths=(4.0, 5.0), bound=10.5, threshold=0.0)
