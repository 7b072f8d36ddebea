"""The paper's methods as baselines: Algorithms 1 and 2, and Eq. 6 and 7.

These attacks are for comparison, not for an audit. Each ends by its own criterion, and a loss below
a threshold proves nothing. ``softleak.recover_label`` says what it proves, and ``softleak.invert``
predicts its error.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from softleak.core.errors import LabelError, ModelError, ShareError, SoftleakError
from softleak.core.factors import head_gradients
from softleak.core.head import Head
from softleak.core.results import Recovery
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.inversion.chain import Chain
from softleak.inversion.steps import REMEDY, ActivationStep, Linear, Reshape


@dataclass(frozen=True, eq=False)
class RowRatios:
    """What Eq. 7 needs of a share, in the share's dtype.

    The searched scalar is ``s = coefficient × λ_r``, so that the feature is ``s g = λ_r g_r``.
    Algorithms 1 and 2 print ``coe × g_m``. The first interval would then begin at ``λ_r = 2.8``,
    beyond most solutions (``|λ_r| ≥ 1``). The published code divides, and so does this.
    """

    index: int  # r, the row of the largest absolute sum
    g: Tensor  # (I,) ``g_r / coefficient``
    ratios: Tensor  # (C,) the ratio of every row to ``g``
    W: Tensor  # (C, I) the head's weight
    b: Tensor  # (C,) the head's bias
    coefficient: float  # what the row is divided by

    @classmethod
    def of(
        cls, model: nn.Module, share: GradientShare, *, coefficient: float = 1.0,
        head: str | Head | None = None,
    ) -> RowRatios | None:  # fmt: skip
        """Return the row of the largest absolute sum, or None if that row is zero."""
        share.check_finite()
        known = Subject.of(model, share.input_shape, head=head).head
        G = head_gradients(known, [share])[0]
        index = int(G.sum(1).abs().argmax())
        if not G[index].any():
            return None
        W = model.get_parameter(known.weight_name).detach().to(G)
        g = G[index] / coefficient
        # Every entry gives the same ratios; the largest one gives them with the least rounding.
        entry = g.abs().argmax()
        return cls(index, g, G[:, entry] / g[entry], W, known.b.to(G), coefficient)


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


# The losses (…) of pseudo labels (…, C), zero on the labels that the loss is made for.
Loss = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Variance:
    """The loss of Eq. 5: the biased variance of all but the top ``k`` entries."""

    k: int = 1  # the number of excluded classes: 1 for smoothing, 2 for mixup
    scale: float = 1000.0  # the factor of App. B.1

    def __call__(self, y: Tensor) -> Tensor:
        classes = y.shape[-1]
        if not 1 <= self.k <= classes - 2:
            raise LabelError(
                f"expected from 1 to {classes - 2} excluded classes of {classes}, got k={self.k}"
            )
        rest = y.topk(classes - self.k, dim=-1, largest=False, sorted=False).values
        return self.scale * rest.var(-1, unbiased=False)


@dataclass(frozen=True, eq=False)
class FullHead:
    """The published evaluation: the whole head for one scalar at a time, in the share's dtype."""

    row: RowRatios
    loss: Loss

    def label(self, scalar: Tensor) -> Tensor:
        """Return the pseudo label ``softmax(W (s g) + b) − ratios / s`` (C,) at one scalar ()."""
        s = scalar.to(self.row.g)
        p = linear(s * self.row.g, self.row.W, self.row.b).softmax(-1)
        return p - self.row.ratios / s

    def __call__(self, scalars: Tensor) -> Tensor:
        """Return the losses (S,) at scalars (S,), which can be differentiated."""
        return torch.stack([self.loss(self.label(scalar)) for scalar in scalars])


@dataclass(frozen=True, eq=False)
class Vectorised(FullHead):
    """The fast evaluation: ``a = W g`` once, then all scalars together, in float64."""

    @cached_property
    def _terms(self) -> tuple[Tensor, Tensor, Tensor]:
        a = self.row.W @ self.row.g
        return a.double(), self.row.b.double(), self.row.ratios.double()

    def label(self, scalar: Tensor) -> Tensor:
        return self._labels(scalar[None])[0]

    def __call__(self, scalars: Tensor) -> Tensor:
        return self.loss(self._labels(scalars))

    def _labels(self, scalars: Tensor) -> Tensor:
        """Return the pseudo labels (S, C) at scalars (S,)."""
        a, b, ratios = self._terms
        s = scalars.to(a)[:, None]
        return (s * a + b).softmax(-1) - ratios / s


@dataclass(frozen=True)
class Best:
    """The lowest point of a search."""

    scalar: float  # the searched scalar ``s = coefficient × λ_r``
    loss: float  # the loss there
    evaluations: int  # the number of evaluations of the loss that the search took

    def lower(self, other: Best) -> Best:
        """Return the lower of two points of one search, with the evaluations of both."""
        first = self if self.loss <= other.loss else other
        return Best(first.scalar, first.loss, self.evaluations + other.evaluations)


Evaluation = Callable[[RowRatios, Loss], FullHead]


@dataclass(frozen=True, kw_only=True)
class ScalarSearch(ABC):
    """A search for the scalar behind one share.

    The defaults of the searches are those of the text: coefficient 4, 200 particles, 30 iterations
    and no skip. The published code has ``Skip``, 500 particles, 40 iterations, wider intervals, and
    coefficient 2 for mixup.
    """

    loss: Loss = field(default_factory=Variance)  # the loss of a pseudo label
    objective: Evaluation = FullHead  # how the loss of a scalar is evaluated
    coefficient: float = 4.0  # what the row is divided by; see ``RowRatios``

    def __call__(
        self, model: nn.Module, share: GradientShare, *, head: str | Head | None = None
    ) -> ClassicResult:
        """Search the label behind one share, else the best scalar, equal for equal seeds."""
        row = RowRatios.of(model, share, coefficient=self.coefficient, head=head)
        if row is None:
            return ClassicResult(ClassicOutcome.ZERO_GRADIENT)
        objective = self.objective(row, self.loss)
        outcome, best = self.search(objective)
        found = ClassicResult(
            outcome, row.index, best.scalar / row.coefficient,
            loss=best.loss, evaluations=best.evaluations,
        )  # fmt: skip
        if not found.converged:
            return found
        with torch.no_grad():
            label = objective.label(torch.tensor(best.scalar, dtype=torch.double)).double()
        return replace(found, label=label, feature=best.scalar * row.g.double())

    @abstractmethod
    def search(self, objective: FullHead) -> tuple[ClassicOutcome, Best]:
        """Return how the search ended, and the lowest point that it saw."""


@dataclass(frozen=True)
class Skip:
    """A jump away from plateaus of three losses, each twice as long: not in the text."""

    jump: float = 0.5  # the length of the first jump
    agreement: float = 1e-3  # losses agree if they differ by less than this part of their mean

    def due(self, losses: list[float]) -> bool:
        last = losses[-3:]
        return len(last) == 3 and max(last) - min(last) < self.agreement * sum(last) / 3


@dataclass(frozen=True, kw_only=True)
class LBFGSSearch(ScalarSearch):
    """Algorithm 1, with the settings of the text (App. E).

    The bound is compared with |s| before the loss is looked at. As printed (``λ_r > bound``, after
    the loss) it would never end the negative side. A step consists of up to 20 steps of torch's
    L-BFGS. For a single scalar L-BFGS is the secant method, and the newest pair decides alone.
    """

    lr: float = 0.5  # the learning rate
    initial: float = 1.0  # the start, of the searched scalar ``s = coefficient × λ_r``
    bound: float = 100.0  # the largest |s|
    iterations: int = 200  # the number of steps, half of them on each side
    threshold: float = 1e-9  # the loss below which the search has converged
    history: int = 100  # torch's history of L-BFGS. One takes the same steps in less time
    skip: Skip | None = None  # how plateaus are left, if at all

    def search(self, objective: FullHead) -> tuple[ClassicOutcome, Best]:
        """Descend from one side of zero, and if that fails from the other."""
        outcome, best = self._descend(objective, self.initial)
        if outcome is not ClassicOutcome.CONVERGED:
            outcome, other = self._descend(objective, -self.initial)
            best = best.lower(other)
        return outcome, best

    def _descend(self, objective: FullHead, start: float) -> tuple[ClassicOutcome, Best]:
        """Descend on one side, with at most half the iterations, from ``start``."""
        s = torch.tensor([start], dtype=torch.double, requires_grad=True)
        optimiser = torch.optim.LBFGS([s], lr=self.lr, history_size=self.history)
        jump = math.copysign(self.skip.jump, start) if self.skip else 0.0
        losses: list[float] = []
        lowest, evaluations = Best(start, math.inf, 0), 0

        def evaluate() -> Tensor:
            """Return the loss at the present scalar, and leave its gradient there."""
            nonlocal evaluations
            evaluations += 1
            optimiser.zero_grad()
            with torch.enable_grad():
                loss = objective(s)[0]
                loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()

        outcome = ClassicOutcome.EXHAUSTED
        for _ in range(self.iterations // 2):
            losses.append(float(evaluate()))
            if not abs(float(s.detach())) <= self.bound:
                outcome = ClassicOutcome.OUT_OF_BOUND
                break
            if losses[-1] < lowest.loss:
                lowest = Best(float(s.detach()), losses[-1], 0)
            if losses[-1] < self.threshold:
                outcome = ClassicOutcome.CONVERGED
                break
            if self.skip and self.skip.due(losses):
                with torch.no_grad():
                    s += jump
                jump *= 2
            else:
                optimiser.step(evaluate)  # type: ignore[no-untyped-call]
        return outcome, replace(lowest, evaluations=evaluations)


@dataclass(frozen=True)
class Swarm:
    """A swarm of particles, each drawn to the best point it has seen and to the best of all.

        v ← inertia v + own r₁ (its best − x) + shared r₂ (the best − x),   x ← x + v

    with ``r₁, r₂ ~ U(0, 1)``. Particles start uniformly in ``[low, high]``, with velocities up to
    its width. A particle that would leave the interval is held at its end. The sizes are the text's
    (App. E). The weights are those of scikit-opt 0.6, which the published code uses.
    """

    particles: int = 200  # the number of particles
    iterations: int = 30  # the number of moves
    inertia: float = 0.8  # the part of its velocity that a particle keeps
    own: float = 0.5  # the pull towards the best point that the particle has seen
    shared: float = 0.5  # the pull towards the best point that any particle has seen

    def minimise(self, loss: Loss, low: float, high: float, generator: torch.Generator) -> Best:
        """Return the lowest point in ``[low, high]`` of a loss from points (S,) to losses (S,)."""
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
        return torch.rand(self.particles, generator=generator, dtype=torch.double)


def _losses(loss: Loss, x: Tensor) -> Tensor:
    """Return the losses at ``x``. A point where the loss is undefined never leads the swarm."""
    with torch.no_grad():
        return loss(x).to(x).nan_to_num(nan=float("inf"))


@dataclass(frozen=True, kw_only=True)
class PSOSearch(ScalarSearch):
    """Algorithm 2, with the settings of the text (App. E), else the first of its code's."""

    swarm: Swarm = field(default_factory=Swarm)  # the optimiser on each interval
    initial: float = 1.0  # where the first interval begins
    widths: tuple[float, ...] = (5.0,)  # of the intervals: each once, the last until the bound
    overlap: float = 0.3  # how far an interval reaches into the one before
    bound: float = 70.0  # where the search ends, on |s|
    threshold: float = 1e-9  # the loss that ends the search after an interval; zero: visit all
    seed: int = 0  # the seed of the swarms

    def __post_init__(self) -> None:
        if not self.widths or min(self.widths) <= 0:
            raise SoftleakError(f"expected at least one width, all positive, got {self.widths=}")

    def search(self, objective: FullHead) -> tuple[ClassicOutcome, Best]:
        """Send a swarm to one interval after the other."""
        generator = torch.Generator().manual_seed(self.seed)
        best = Best(math.nan, math.inf, 0)
        for low, high in self.intervals():
            best = best.lower(self.swarm.minimise(objective, low, high, generator))
            if best.loss < self.threshold:
                return ClassicOutcome.CONVERGED, best
        return ClassicOutcome.OUT_OF_BOUND, best

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
    """Algorithm 1, followed by Algorithm 2 if it did not converge, be it to a false minimum."""

    lbfgs: LBFGSSearch = field(default_factory=LBFGSSearch)  # the search that is tried first
    pso: PSOSearch = field(default_factory=PSOSearch)  # tried if the first did not converge

    def __call__(
        self, model: nn.Module, share: GradientShare, *, head: str | Head | None = None
    ) -> ClassicResult:
        """Return the result of the search that converged, or of the second, evaluations of both."""
        share.check_finite()
        ready = Subject.of(model, share.input_shape, head=head).head
        first = self.lbfgs(model, share, head=ready)
        if first.converged or first.outcome is ClassicOutcome.ZERO_GRADIENT:
            return first
        second = self.pso(model, share, head=ready)
        return replace(second, evaluations=first.evaluations + second.evaluations)


# The intervals end at 6, 10, 30 and 50. The next would end at the bound, which is not below it.
PUBLISHED_SMOOTHING = LBFGSThenPSO(
    LBFGSSearch(skip=Skip()),
    PSOSearch(swarm=Swarm(particles=500, iterations=40), widths=(5.0, 4.0, 20.0)),
)

# For Table 5: with noise no loss is below 1e-9, so the best of all intervals is taken. It is
# found in ``scalar`` and ``loss`` of a result that has not converged by its own criterion.
PUBLISHED_NOISE = PSOSearch(coefficient=1.0, widths=(4.0, 5.0), bound=10.5, threshold=0.0)


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
