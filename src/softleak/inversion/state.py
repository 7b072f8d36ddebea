"""What is known at one place of a network while walking back through it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Known:
    """A layer's output and ``∂L/∂output``, of one sample without batch dimension, in float64.

    An infinite ``error`` says that an entry of ``value`` is not known at all.
    """

    value: Tensor
    error: Tensor
    delta: Tensor
    delta_error: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> Known:
        """The same entries in another arrangement."""
        return Known(*map(change, (self.value, self.error, self.delta, self.delta_error)))


def combined(a: Tensor, a_error: Tensor, b: Tensor, b_error: Tensor) -> tuple[Tensor, Tensor]:
    """Two measurements of one thing, weighted by their precision."""
    tiny = torch.finfo(torch.double).tiny
    w_a, w_b = (error.square().clamp_min(tiny).reciprocal() for error in (a_error, b_error))
    return (a * w_a + b * w_b) / (w_a + w_b), (w_a + w_b).rsqrt()
