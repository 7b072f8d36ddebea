"""What the paper does for a label: one scalar, its loss (Eq. 5 and 7), and Algorithm 2.

This is for comparison, not for an audit: a loss below a threshold proves nothing, and
``softleak.recover_label`` says what it proves. Algorithm 1 and the procedure of §4.2 are raced
against softleak in ``benchmarks/classic.py`` of the repository.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
    """What Eq. 7 needs of a share, in the share's dtype."""

    index: int  # r, the row of the largest absolute sum
    g: Tensor  # (I,) ``g_r``
    ratios: Tensor  # (C,) the ratio of every row to ``g``
    W: Tensor  # (C, I) the head's weight
    b: Tensor  # (C,) the head's bias

    @classmethod
    def of(
        cls, model: nn.Module, share: GradientShare, *, head: str | Head | None = None
    ) -> RowRatios | None:
        """Return the row of the largest absolute sum, or None if that row is zero."""
        share.check_finite()
        known = Subject.of(model, share.input_shape, head=head).head
        G = head_gradients(known, [share])[0]
        index = int(G.sum(1).abs().argmax())
        if not G[index].any():
            return None
        W = model.get_parameter(known.weight_name).detach().to(G)
        g = G[index]
        # Every entry gives the same ratios; the largest one gives them with the least rounding.
        entry = g.abs().argmax()
        return cls(index, g, G[:, entry] / g[entry], W, known.b.to(G))

    @cached_property
    def _terms(self) -> tuple[Tensor, Tensor, Tensor]:
        a = self.W @ self.g
        return a.double(), self.b.double(), self.ratios.double()

    def labels(self, scalars: Tensor) -> Tensor:
        """Return the pseudo labels ``softmax(λ W g + b) − ratios / λ`` (S, C) at scalars λ."""
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

    def minimise(
        self, loss: Loss, low: float, high: float, generator: torch.Generator
    ) -> tuple[float, float]:  # fmt: skip
        """Return the lowest loss in ``[low, high]`` and its point; losses (S,) are of points."""

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
        return float(best[first]), float(best_x[first])


# As published for noise (Table 5), each in turn. No loss tells where to stop, so the best is taken.
INTERVALS = ((0.7, 5.0), (-5.0, -0.7), (4.7, 10.0), (-10.0, -4.7))


def best_scalar(row: RowRatios) -> Tensor:
    """Return the λ_r () of the lowest loss that Algorithm 2 finds, as published for noise."""
    generator = torch.Generator().manual_seed(0)

    def loss(scalars: Tensor) -> Tensor:
        return Variance()(row.labels(scalars))

    found = [Swarm().minimise(loss, *interval, generator) for interval in INTERVALS]
    return torch.tensor(min(found)[1], dtype=torch.double)
