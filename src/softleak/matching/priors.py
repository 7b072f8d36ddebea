"""What an input looks like before any gradient is seen: penalties that join the objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Prior(Protocol):
    """A penalty of one input, smaller where the input is likelier."""

    def __call__(self, x: Tensor) -> Tensor:
        """Of an input (C, H, W), a scalar."""
        ...


@dataclass(frozen=True)
class TotalVariation:
    """The mean absolute difference of neighbours along each axis of an image, or of a signal."""

    weight: float = 1e-2

    def __call__(self, x: Tensor) -> Tensor:
        axes = [axis for axis in (-1, -2) if x.ndim >= -axis and x.shape[axis] > 1]
        return self.weight * sum((x.diff(dim=a).abs().mean() for a in axes), x.new_zeros(()))


@dataclass(frozen=True)
class Box:
    """The mean square of how far entries are outside an interval (one number, or one a channel)."""

    low: Tensor | float
    high: Tensor | float
    weight: float = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        below, above = (self.low - x).clamp_min(0), (x - self.high).clamp_min(0)
        return self.weight * (below.square() + above.square()).mean()
