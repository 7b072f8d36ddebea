"""Evidence of the head's own bias, whose gradient is ``δ = p − y``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from softleak.factors import Factors
from softleak.head import Head
from softleak.labels.evidence.probe_runs import Probe
from softleak.labels.evidence.relation import Blurred, Estimate, least_squares


@dataclass(frozen=True)
class HeadBias:
    """This is the relation ``G_b = δ = τ u``: the classic bias ratio, over all rows at once.

    Attributes:
        parameter: the name of the bias in a share.
        accuracy: the relative error of ``τ`` that was seen on probes.
    """

    parameter: str
    accuracy: float = 0.0

    @property
    def explanation(self) -> str:
        """What the relation is, in one line for people."""
        return "the head's bias gradient is p − y itself"

    @property
    def coarsest(self) -> float:
        """The relative error of a gradient beyond which the relation says nothing."""
        return math.inf

    def solve(self, g: Tensor, head: Head, factors: Factors) -> Estimate:
        """Estimate ``τ`` by projecting the gradients ``g`` (N, C) onto ``u``."""
        return least_squares(g, factors.u, factors)

    def log_likelihood(self, g: Tensor, seen: Blurred, tau: Tensor) -> Tensor:
        """Return the log likelihood (S,) of τ (S,), up to a constant, given one gradient (C,)."""
        variance = seen.noise**2 + tau.square()[:, None] * seen.u_variance
        return seen.density(g - tau[:, None] * seen.u, variance).sum(-1)


def fit_head_bias(name: str, head: Head, _: Sequence[Probe]) -> list[HeadBias]:
    """Return the relation of the head's bias, if the parameter is that."""
    return [HeadBias(name)] if name == head.bias_name else []
