"""The paper's methods as published, to be raced: Algorithms 1 and 2, and Eq. 6 and 7.

Each ends by its own criterion, and a loss below a threshold proves nothing.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from softleak import Chain, GradientShare, Head, Recovery
from softleak.core.errors import ModelError, ShareError
from softleak.inversion.steps import REMEDY, ActivationStep, Linear, Reshape
from softleak.paper.classic import Loss, RowRatios, Swarm, Variance


@dataclass(frozen=True, eq=False)
class FullHead(RowRatios):
    """The published evaluation: the whole head for one scalar at a time, in the share's dtype."""

    def labels(self, scalars: Tensor) -> Tensor:
        """Return the pseudo labels (S, C) at scalars (S,)."""
        return torch.stack([self.label(scalar.to(self.g)) for scalar in scalars])

    def label(self, s: Tensor) -> Tensor:
        """Return the pseudo label (C,) at one scalar ()."""
        return linear(s * self.g, self.W, self.b).softmax(-1) - self.ratios / s


@dataclass(frozen=True, eq=False)
class EntryByEntry(FullHead):
    """Eq. 7 as printed: find an entry of the feature to divide by, then take one class at a time.

    The published code compares the entries of the feature one after another as Python objects, for
    every scalar, which is most of its running time. ``FullHead`` is the same without these loops.
    """

    def label(self, s: Tensor) -> Tensor:
        """Return the pseudo label (C,) at one scalar ()."""
        x = s * self.g
        p = linear(x, self.W, self.b).softmax(-1)
        values = x.detach().abs().unbind()
        entry = max(range(len(values)), key=values.__getitem__)
        scale = self.g[entry] / x[entry]
        y = torch.zeros_like(p)
        for i, p_i in enumerate(p):
            y[i] = p_i - self.ratios[i] * scale
        return y


class ClassicOutcome(Enum):
    """How a method ended. ``CONVERGED`` means the method's own criterion, which is no proof."""

    CONVERGED = "the method's own criterion is met"
    OUT_OF_BOUND = "the search left its bound before the loss was low enough"
    EXHAUSTED = "the search ended before the loss was low enough"
    ZERO_GRADIENT = "the head's gradient is zero: the label equals the model's own prediction"


@dataclass(frozen=True, eq=False)
class ClassicResult:
    """What a classic method found."""

    outcome: ClassicOutcome  # how the method ended
    row: int | None = None  # r, the row that stands for the feature
    scalar: float | None = None  # λ_r = 1 / (p_r − y_r); the best a search saw if not converged
    label: Tensor | None = None  # (C,) the label in float64; None unless the method converged
    feature: Tensor | None = None  # (I,) the feature in float64; None unless the method converged
    loss: float | None = None  # the loss at the scalar
    evaluations: int = 0  # the number of evaluations of the loss

    @property
    def converged(self) -> bool:
        """Whether there is a label, because the loss is below the threshold."""
        return self.outcome is ClassicOutcome.CONVERGED


@dataclass(frozen=True, order=True)
class Best:
    """The lowest point of a search, which is the least of several."""

    loss: float  # the loss there
    scalar: float = field(compare=False)  # the searched scalar ``s = coefficient × λ_r``
    # The number of evaluations of the loss that the search took.
    evaluations: int = field(default=0, compare=False)


@dataclass(frozen=True, kw_only=True)
class ScalarSearch(ABC):
    """A search for the scalar behind one share.

    The defaults of the searches are those of the text: coefficient 4, 200 particles, 30 iterations
    and no skip. The published code skips plateaus and has 500 particles, 40 iterations, wider
    intervals, and coefficient 2 for mixup.

    The searched scalar is ``s = coefficient × λ_r``. Algorithms 1 and 2 print ``coe × g_m``. The
    first interval would then begin at ``λ_r = 2.8``, beyond most solutions (``|λ_r| ≥ 1``). The
    published code divides, and so does this.
    """

    loss: Loss = field(default_factory=Variance)  # the loss of a pseudo label
    coefficient: float = 4.0  # what the scalar is divided by
    evaluation: type[RowRatios] = FullHead  # how the labels of scalars are computed

    def __call__(
        self, model: nn.Module, share: GradientShare, *, head: str | Head | None = None
    ) -> ClassicResult:
        """Search the label behind one share, else the best scalar, equal for equal seeds."""
        return self.along(self.evaluation.of(model, share, head=head))

    def along(self, row: RowRatios | None) -> ClassicResult:
        """Search the label along a row; of a row of zeros there is nothing to be searched."""
        if row is None:
            return ClassicResult(ClassicOutcome.ZERO_GRADIENT)
        outcome, best = self.search(lambda s: self.loss(row.labels(s / self.coefficient)))
        scalar = best.scalar / self.coefficient
        found = ClassicResult(
            outcome, row.index, scalar,
            loss=best.loss, evaluations=best.evaluations,
        )  # fmt: skip
        if not found.converged:
            return found
        with torch.no_grad():
            label = row.labels(torch.tensor([scalar], dtype=torch.double))[0].double()
        return replace(found, label=label, feature=scalar * row.g.double())

    @abstractmethod
    def search(self, loss: Loss) -> tuple[ClassicOutcome, Best]:
        """Return how the search ended, and the lowest point that it saw."""


DESCENT_RATE = 0.5  # the learning rate of Algorithm 1
PLATEAU = 1e-3  # three losses agree if they differ by less than this part of their mean


@dataclass(frozen=True, kw_only=True)
class LBFGSSearch(ScalarSearch):
    """Algorithm 1, with the settings of the text (App. E).

    The bound is compared with |s| before the loss is looked at. As printed (``λ_r > bound``, after
    the loss) it would never end the negative side. A step consists of up to 20 steps of torch's
    L-BFGS. For a single scalar L-BFGS is the secant method, and the newest pair decides alone.
    """

    initial: float = 1.0  # the start, of the searched scalar ``s = coefficient × λ_r``
    bound: float = 100.0  # the largest |s|
    iterations: int = 200  # the number of steps, half of them on each side
    threshold: float = 1e-9  # the loss below which the search has converged
    # The first jump away from a plateau, each twice as long, as in the published code; 0 for none.
    jump: float = 0.0

    def search(self, loss: Loss) -> tuple[ClassicOutcome, Best]:
        """Descend from one side of zero, and if that fails from the other."""
        outcome, best = self._descend(loss, self.initial)
        if outcome is not ClassicOutcome.CONVERGED:
            outcome, other = self._descend(loss, -self.initial)
            evaluations = best.evaluations + other.evaluations
            best = replace(min(best, other), evaluations=evaluations)
        return outcome, best

    def _descend(self, loss: Loss, start: float) -> tuple[ClassicOutcome, Best]:
        """Descend on one side, with at most half the iterations, from ``start``."""
        s = torch.tensor([start], dtype=torch.double, requires_grad=True)
        optimiser = torch.optim.LBFGS([s], lr=DESCENT_RATE, history_size=1)
        jump, losses, lowest = math.copysign(self.jump, start), [], Best(math.inf, start)
        evaluations = 0

        def evaluate() -> Tensor:
            """Return the loss at the present scalar, and leave its gradient there."""
            nonlocal evaluations
            evaluations += 1
            with torch.enable_grad():
                here = loss(s)[0]
            (s.grad,) = torch.autograd.grad(here, s)
            return here.detach()

        outcome = ClassicOutcome.EXHAUSTED
        for _ in range(self.iterations // 2):
            losses.append(float(evaluate()))
            at = float(s.detach())
            if not abs(at) <= self.bound:
                outcome = ClassicOutcome.OUT_OF_BOUND
                break
            lowest = min(lowest, Best(losses[-1], at))
            if losses[-1] < self.threshold:
                outcome = ClassicOutcome.CONVERGED
                break
            if jump and on_plateau(losses):
                with torch.no_grad():
                    s += jump
                jump *= 2
            else:
                optimiser.step(evaluate)  # type: ignore[no-untyped-call]
        return outcome, replace(lowest, evaluations=evaluations)


def on_plateau(losses: list[float]) -> bool:
    """Return whether the last three losses agree."""
    last = losses[-3:]
    return len(last) == 3 and max(last) - min(last) < PLATEAU * sum(last) / 3


OVERLAP = 0.3  # how far an interval reaches into the one before


@dataclass(frozen=True, kw_only=True)
class PSOSearch:
    """Algorithm 2, with the settings of the text (App. E), else the first of its code's."""

    swarm: Swarm = field(default_factory=Swarm)  # the optimiser on each interval
    initial: float = 1.0  # where the first interval begins
    widths: tuple[float, ...] = (5.0,)  # of the intervals: each once, the last until the bound
    bound: float = 70.0  # where the search ends, on |s|
    threshold: float = 1e-9  # the loss that ends the search after an interval; zero: visit all
    seed: int = 0  # the seed of the swarms

    def search(self, loss: Loss) -> Best:
        """Send a swarm to one interval after the other, and return the lowest point of all."""
        generator = torch.Generator().manual_seed(self.seed)
        best, evaluations = Best(math.inf, math.nan), 0
        for low, high in self.intervals():
            best = min(best, Best(*self.swarm.minimise(loss, low, high, generator)))
            evaluations += self.swarm.particles * (self.swarm.iterations + 1)
            if best.loss < self.threshold:
                break
        return replace(best, evaluations=evaluations)

    def intervals(self) -> Iterator[tuple[float, float]]:
        """Yield the interval ``[low, high]`` of every swarm, in order."""
        lower = self.initial
        for number in itertools.count():
            upper = lower + self.widths[min(number, len(self.widths) - 1)]
            if not upper < self.bound:
                return
            yield lower - OVERLAP, upper
            yield -upper, OVERLAP - lower
            lower = upper


@dataclass(frozen=True, kw_only=True)
class SwarmSearch(ScalarSearch):
    """Algorithm 2."""

    pso: PSOSearch = field(default_factory=PSOSearch)  # the search, with its intervals

    def search(self, loss: Loss) -> tuple[ClassicOutcome, Best]:
        """Send a swarm to one interval after the other."""
        best = self.pso.search(loss)
        converged = best.loss < self.pso.threshold
        return ClassicOutcome.CONVERGED if converged else ClassicOutcome.OUT_OF_BOUND, best


@dataclass(frozen=True)
class LBFGSThenPSO:
    """Algorithm 1, followed by Algorithm 2 if it did not converge, be it to a false minimum."""

    lbfgs: LBFGSSearch = field(default_factory=LBFGSSearch)  # the search that is tried first
    pso: SwarmSearch = field(default_factory=SwarmSearch)  # tried if the first did not converge

    def __call__(
        self, model: nn.Module, share: GradientShare, *, head: str | Head | None = None
    ) -> ClassicResult:
        """Return the result of the search that converged, or of the second, evaluations of both."""
        first = self.lbfgs(model, share, head=head)
        if first.converged or first.outcome is ClassicOutcome.ZERO_GRADIENT:
            return first
        second = self.pso(model, share, head=head)
        return replace(second, evaluations=first.evaluations + second.evaluations)


# The intervals end at 6, 10, 30 and 50. The next would end at the bound, which is not below it.
PUBLISHED_SMOOTHING = LBFGSThenPSO(
    LBFGSSearch(jump=0.5),
    SwarmSearch(pso=PSOSearch(swarm=Swarm(particles=500, iterations=40), widths=(5.0, 4.0, 20.0))),
)


def one_index(chain: Chain, share: GradientShare, recovery: Recovery) -> Tensor:
    """Return the input of a fully connected network by Eq. 6 and 7 (§4.2), as published.

    At each layer ``x = G_r / δ_r`` for the row r of the largest |δ|. Raises ``ShareError`` if the
    recovery has no feature, and ``ModelError`` if a layer is not fully connected.
    """
    if recovery.feature is None or recovery.label is None:
        raise ShareError(f"the recovery has no feature to start from: {recovery.message}")
    head = chain.head
    if recovery.scale != 1.0:
        share = share.scaled(1 / recovery.scale)
    like = share[head.weight_name].dtype
    x = recovery.feature.to(like)
    p = torch.softmax(head.logits(recovery.feature[None])[0] + head.b, -1)
    delta = head.back((p - recovery.label)[None])[0].to(like)
    for step in chain.steps:
        match step:
            case ActivationStep():
                delta = delta * step.phi.slope(x)
            case Linear():
                row = int(delta.abs().argmax())
                x = share[f"{step.name}.weight"][row] / delta[row]
                delta = delta @ step.weight
            case Reshape():
                x, delta = x.reshape(step.input_shape), delta.reshape(step.input_shape)
            case _:
                raise ModelError(
                    f"Eq. 6 and 7 invert fully connected layers only, got {step.name} "
                    f"({type(step).__name__}); use softleak.invert, or {REMEDY}"
                )
    return x
