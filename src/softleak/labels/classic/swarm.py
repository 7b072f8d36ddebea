"""This module holds particle swarm optimisation of a function of one variable (Kennedy & Eberhart,
1995).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.labels.classic.best import Best


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
