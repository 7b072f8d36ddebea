"""How far a gradient is from the shared one: Eq. 8, with the feature as a further term.

``Σ_{i<head} D(g_i, g_i*) + α D(g_head, g_head*) + β D(f, f*)`` with D squared (L2) or one cosine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from softleak.errors import OptionError

TINY = 1e-30  # what a squared norm is at least


@runtime_checkable
class Objective(Protocol):
    """A distance between what one input would send and what was sent."""

    @property
    def alpha(self) -> float:
        """The weight of the head's weight gradient."""
        ...

    @property
    def beta(self) -> float:
        """The weight of the feature; if zero, no feature is needed."""
        ...

    def gradients(self, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> Tensor:
        """``D`` over all gradients, which carry the root of their weights already."""
        ...

    def features(self, ours: Tensor, theirs: Tensor) -> Tensor:
        """``D`` of two features (I,)."""
        ...


@dataclass(frozen=True)
class _Weights:
    alpha: float = 1.0
    beta: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.alpha < float("inf") and 0 <= self.beta < float("inf")):
            raise OptionError(
                f"expected weights that are finite and not negative, got alpha {self.alpha} and "
                f"beta {self.beta}"
            )


@dataclass(frozen=True)
class L2(_Weights):
    """The sum of squared differences (DLG)."""

    def gradients(self, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> Tensor:
        apart = [(a - b).square().sum() for a, b in zip(ours, theirs, strict=True)]
        return torch.stack(apart).sum()

    def features(self, ours: Tensor, theirs: Tensor) -> Tensor:
        return (ours - theirs).square().sum()


@dataclass(frozen=True)
class Cosine(_Weights):
    """One minus the cosine of the angle between all gradients, taken as one vector."""

    def gradients(self, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> Tensor:
        return 1 - _cosine(ours, theirs)

    def features(self, ours: Tensor, theirs: Tensor) -> Tensor:
        return 1 - _cosine([ours], [theirs])


def _cosine(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> Tensor:
    product = torch.stack([(a * b).sum() for a, b in zip(ours, theirs, strict=True)]).sum()
    sizes = [torch.stack([g.square().sum() for g in each]).sum() for each in (ours, theirs)]
    return product * (sizes[0].clamp_min(TINY) * sizes[1].clamp_min(TINY)).rsqrt()
