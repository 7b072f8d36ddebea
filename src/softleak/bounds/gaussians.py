"""The best attack on one of C Gaussians that differ in nothing but their means.

Behind independent Gaussian noise of standard deviation ``σ`` a candidate ``c`` leaves
``μ_c + σ n``. Of all attackers, the one who names the candidate with the largest
``π_c exp(−‖s − μ_c‖² / 2σ²)`` is right most often. Nothing but the inner products ``K`` of the
differences ``μ_c − μ_0`` enters: in a basis of their span the means are the rows of ``Z`` with
``Z Zᵀ = K``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

CONFIDENCE = 0.99  # of every interval
DRAWN_AT_ONCE = 1 << 22  # scores held at a time
SAME = 64.0  # roundings of the largest squared distance: means no further apart are equal
SHORTEST = 1e-30  # a noise that counts as none
BISECTIONS = 20  # steps to the weakest noise, in the logarithm


@dataclass(frozen=True)
class Successes:
    """How often the best attack was right in independent trials."""

    hits: int
    trials: int

    @property
    def rate(self) -> float:
        return self.hits / self.trials

    @property
    def interval(self) -> tuple[float, float]:
        """Return the exact (Clopper–Pearson) interval of the probability of a success."""
        from scipy.special import betaincinv  # slow to import

        tail, hits, misses = (1 - CONFIDENCE) / 2, self.hits, self.trials - self.hits
        low = float(betaincinv(hits, misses + 1, tail)) if hits else 0.0
        high = float(betaincinv(hits + 1, misses, 1 - tail)) if misses else 1.0
        return low, high


@dataclass(frozen=True, eq=False)
class Mixture:
    """Candidates whose updates differ by known means."""

    gram: Tensor  # the inner products (C, C) of the differences of the means from any one point
    prior: Tensor  # the probability (C,) of each candidate

    @property
    def chance(self) -> float:
        """Return how often a guess without the update is right."""
        return float(self.prior.max())

    @property
    def distances(self) -> Tensor:
        """Return the distances (C, C) of the means."""
        own = self.gram.diagonal()
        return (own[:, None] + own - 2 * self.gram).clamp_min(0).sqrt()

    def best_attack(self, noise: float, trials: int, seed: int = 0) -> Successes:
        """Return how often the best attack is right in so many trials, drawn with a seed."""
        generator = torch.Generator().manual_seed(seed)
        values, vectors = torch.linalg.eigh(self.gram)
        Z = vectors * values.clamp_min(0).sqrt()
        scale = 0.0 if math.isinf(noise) else noise
        bar = scale**2 * (self.prior / self.chance).log() - Z.square().sum(1) / 2
        bar = bar.masked_fill(self._shadowed(noise), -math.inf)
        hits, left = 0, trials
        while left:
            count = min(left, max(DRAWN_AT_ONCE // len(Z), 1))
            truth = torch.multinomial(self.prior, count, replacement=True, generator=generator)
            drawn = torch.randn(count, Z.shape[1], generator=generator, dtype=Z.dtype)
            named = torch.addmm(bar, Z[truth] + scale * drawn, Z.T).argmax(1)
            hits, left = hits + int((named == truth).sum()), left - count
        return Successes(hits, trials)

    def _shadowed(self, noise: float) -> Tensor:
        """Return which candidates (C,) cannot be told from a likelier one, and are never named."""
        far = self.distances.square()
        rounding = SAME * torch.finfo(far.dtype).eps * float(self.gram.diagonal().max())
        same = far <= (math.inf if math.isinf(noise) else rounding)
        order = torch.argsort(self.prior, descending=True, stable=True).argsort()
        return (same & (order[None, :] < order[:, None])).any(1)

    def weakest_noise(self, target: float, trials: int, seed: int = 0) -> float | None:
        """Return the weakest noise whose interval lies below ``target``, to a part in 10⁵.

        None if no noise does, because a guess is right as often. The draws are the same at every
        noise, so that the hits fall steadily.
        """
        if self.best_attack(math.inf, trials, seed).interval[1] > target:
            return None
        far = max(float(self.distances.max()), SHORTEST)
        return weakest(
            lambda noise: self.best_attack(noise, trials, seed).interval[1] <= target, far
        )


def weakest(hides: Callable[[float], bool], near: float) -> float:
    """Return the weakest noise that hides, to a part in 10⁵; the search begins at ``near``."""
    low = high = near
    while not hides(high):
        high *= 2
    while low > SHORTEST and hides(low):
        low /= 2
    for _ in range(BISECTIONS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if hides(middle) else (middle, high)
    return high
