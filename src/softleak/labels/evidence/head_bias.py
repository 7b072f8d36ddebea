"""The head's own bias."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from softleak.factors import Factors
from softleak.head import Head
from softleak.labels.evidence.relation import Blurred, Estimate, least_squares


@dataclass(frozen=True)
class HeadBias:
    """``G_b = δ``: the classic bias ratio, over all rows at once.

    ``accuracy`` is the relative error of ``τ`` seen on probes.
    """

    parameter: str
    accuracy: float = 0.0

    @property
    def explanation(self) -> str:
        return "the head's bias gradient is p − y itself"

    @property
    def coarsest(self) -> float:
        return math.inf

    def solve(self, g: Tensor, head: Head, factors: Factors) -> Estimate:
        return least_squares(g, factors.u, factors)

    def log_likelihood(self, g: Tensor, seen: Blurred, tau: Tensor) -> Tensor:
        variance = seen.noise**2 + tau.square()[:, None] * seen.u_variance
        return seen.density(g - tau[:, None] * seen.u, variance).sum(-1)
