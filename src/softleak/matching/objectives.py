"""Objectives measure how far a gradient is from the shared one (§4.3, Eq. 8).

``Σ_{i<head} D(g_i, g_i*) + α D(g_head, g_head*) + β D(f, f*)``, where ``D`` is the squared distance
(``L2``) or one cosine over all gradients (``Cosine``), and ``f`` is the feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from softleak.errors import OptionError


@runtime_checkable
class Objective(Protocol):
    """A distance between what one input would send and what was sent."""

    @property
    def alpha(self) -> float:
        """Return the weight of the gradient of the head's weight."""
        ...

    @property
    def beta(self) -> float:
        """The weight of the feature; if it is zero, no feature is needed."""
        ...

    def gradients(self, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> Tensor:
        """Return ``D`` over all gradients, which are already scaled by the root of their weight."""
        ...

    def features(self, ours: Tensor, theirs: Tensor) -> Tensor:
        """Return ``D`` of two features (I,), or the mean over those of a batch (B, I)."""
        ...


@dataclass(frozen=True)
class _Weights:
    """The two weights of Eq. 8, which every objective here has.

    Attributes:
        alpha: the weight of the gradient of the head's weight; zero leaves it out.
        beta: the weight of the feature; zero leaves it out.
    """

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
        return (ours - theirs).square().sum(-1).mean()


@dataclass(frozen=True)
class Cosine(_Weights):
    """This is one minus the cosine of the angle between all gradients, taken as one vector.

    Attributes:
        floor: the least value of a squared norm, so that a gradient of zero has a finite loss.
    """

    floor: float = 1e-30

    def gradients(self, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> Tensor:
        return 1 - self._cosine(ours, theirs)

    def features(self, ours: Tensor, theirs: Tensor) -> Tensor:
        product = (ours * theirs).sum(-1)
        sizes = [g.square().sum(-1).clamp_min(self.floor) for g in (ours, theirs)]
        return (1 - product * (sizes[0] * sizes[1]).rsqrt()).mean()

    def _cosine(self, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> Tensor:
        """Return the cosine of the angle between two lists of tensors, each taken as one vector."""
        product = torch.stack([(a * b).sum() for a, b in zip(ours, theirs, strict=True)]).sum()
        sizes = [torch.stack([g.square().sum() for g in each]).sum() for each in (ours, theirs)]
        return product * (sizes[0].clamp_min(self.floor) * sizes[1].clamp_min(self.floor)).rsqrt()
