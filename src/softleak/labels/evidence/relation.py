"""Evidence beyond the head's weight (design §3): other gradients that are known functions of ``t``.

Each relation turns one parameter's gradient into ``τ = κ t``, κ being the unknown overall scale
(one if the scale is known), for ANY label. Feature and probabilities follow without knowing κ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from softleak.factors import Factors
from softleak.head import Head

TINY = torch.finfo(torch.double).tiny


@dataclass(frozen=True, eq=False)
class Estimate:
    """``τ`` of N clients, its error, and how far the gradient is from what it implies. All (N,)."""

    scalar: Tensor
    error: Tensor
    misfit: Tensor  # ‖g − predicted‖ / ‖g‖

    def where(self, chosen: Tensor, other: Estimate) -> Estimate:
        """This estimate for the chosen clients, another for the rest."""
        return Estimate(
            torch.where(chosen, self.scalar, other.scalar),
            torch.where(chosen, self.error, other.error),
            torch.where(chosen, self.misfit, other.misfit),
        )


class Relation(Protocol):
    """One parameter whose gradient determines ``τ``."""

    @property
    def parameter(self) -> str:
        """Its name in the share."""
        ...

    @property
    def explanation(self) -> str:
        """One line for people."""
        ...

    def solve(self, g: Tensor, head: Head, factors: Factors) -> Estimate:
        """``τ`` from the gradients ``g`` (N, m)."""
        ...


def least_squares(g: Tensor, direction: Tensor, factors: Factors) -> Estimate:
    """``g = τ · direction``, by least squares."""
    size = direction.square().sum(-1).clamp_min(TINY)
    tau = (g * direction).sum(-1) / size
    rest = (g - tau[:, None] * direction).norm(dim=-1)
    misfit = rest / g.norm(dim=-1).clamp_min(TINY)
    return Estimate(tau, 4 * (rest / size.sqrt() + factors.relative * tau.abs()), misfit)
