"""Priors are penalties that say what an input looks like before any gradient is seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Prior(Protocol):
    """A penalty of one input, which is smaller where the input is likelier."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return the penalty, a scalar, of one input such as (C, H, W)."""
        ...


@dataclass(frozen=True)
class TotalVariation:
    """The mean absolute difference of neighbours along each axis of an image or a signal.

    ``weight · Σ_axes mean |x_{i+1} − x_i|`` over the last two axes that are longer than one.

    Attributes:
        weight: the factor of the penalty; the paper has 1e-2 on untrained networks and 1e-3 on
            trained ones.
    """

    weight: float = 1e-2

    def __call__(self, x: Tensor) -> Tensor:
        axes = [axis for axis in (-1, -2) if x.ndim >= -axis and x.shape[axis] > 1]
        return self.weight * sum((x.diff(dim=a).abs().mean() for a in axes), x.new_zeros(()))


@dataclass(frozen=True)
class Box:
    """The mean square of the distance by which entries lie outside an interval.

    Attributes:
        low: the lower end: one number, or a tensor that broadcasts, such as one per channel.
        high: the upper end, likewise.
        weight: the factor of the penalty.
    """

    low: Tensor | float
    high: Tensor | float
    weight: float = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        below, above = (self.low - x).clamp_min(0), (x - self.high).clamp_min(0)
        return self.weight * (below.square() + above.square()).mean()
