"""What the paper does for a label: one scalar, its loss (Eq. 5 and 7), and Algorithm 2.

This is for comparison, not for an audit: a loss below a threshold proves nothing, and
``softleak.recover_label`` says what it proves. Algorithm 1 and the procedure of §4.2 are raced
against softleak in ``benchmarks/classic.py`` of the repository.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from softleak.core.errors import LabelError
from softleak.core.factors import head_gradients
from softleak.core.head import Head
from softleak.core.share import GradientShare
from softleak.core.subject import Subject


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

    @cached_property
    def _terms(self) -> tuple[Tensor, Tensor, Tensor]:
        a = self.W @ self.g
        return a.double(), self.b.double(), self.ratios.double()

    def labels(self, scalars: Tensor) -> Tensor:
        """Return the pseudo labels ``softmax(s W g + b) − ratios / s`` (S, C) at scalars (S,)."""
        a, b, ratios = self._terms
        s = scalars.to(a)[:, None]
        return (s * a + b).softmax(-1) - ratios / s


# The losses (…) of what is searched: of scalars, or of pseudo labels (…, C).
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


@dataclass(frozen=True, order=True)
class Best:
    """The lowest point of a search, which is the least of several."""

    loss: float  # the loss there
    scalar: float = field(compare=False)  # the searched scalar ``s = coefficient × λ_r``
    # The number of evaluations of the loss that the search took.
    evaluations: int = field(default=0, compare=False)


INERTIA = 0.8  # the part of its velocity that a particle keeps
PULL = 0.5  # towards the best point that the particle has seen, and that any particle has seen


@dataclass(frozen=True)
class Swarm:
    """A swarm of particles, each drawn to the best point it has seen and to the best of all.

        v ← inertia v + pull r₁ (its best − x) + pull r₂ (the best − x),   x ← x + v

    with ``r₁, r₂ ~ U(0, 1)``. Particles start uniformly in ``[low, high]``, with velocities up to
    its width. A particle that would leave the interval is held at its end. The sizes are the text's
    (App. E). The weights are those of scikit-opt 0.6, which the published code uses.
    """

    particles: int = 200  # the number of particles
    iterations: int = 30  # the number of moves

    def minimise(self, loss: Loss, low: float, high: float, generator: torch.Generator) -> Best:
        """Return the lowest point in ``[low, high]`` of a loss from points (S,) to losses (S,)."""

        def drawn() -> Tensor:
            return torch.rand(self.particles, generator=generator, dtype=torch.double)

        def losses(x: Tensor) -> Tensor:  # a point where the loss is undefined never leads
            with torch.no_grad():
                return loss(x).to(x).nan_to_num(nan=float("inf"))

        x = low + (high - low) * drawn()
        v = (high - low) * (2 * drawn() - 1)
        best_x, best = x, losses(x)
        for _ in range(self.iterations):
            leader = best_x[best.argmin()]
            pull = PULL * drawn() * (best_x - x)
            v = INERTIA * v + pull + PULL * drawn() * (leader - x)
            x = (x + v).clamp(low, high)
            here = losses(x)
            better = here < best
            best_x, best = torch.where(better, x, best_x), torch.where(better, here, best)
        first = best.argmin()
        return Best(
            float(best[first]), float(best_x[first]), self.particles * (self.iterations + 1)
        )


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
            found = self.swarm.minimise(loss, low, high, generator)
            evaluations += found.evaluations
            best = min(best, found)
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


# For Table 5: with noise no loss is below 1e-9, so the best of all intervals is taken.
PUBLISHED_NOISE = PSOSearch(widths=(4.0, 5.0), bound=10.5, threshold=0.0)
