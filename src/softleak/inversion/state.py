"""What is known at one place of a network while walking back through it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

TINY = 1e-300  # what a divisor is at least


@dataclass(frozen=True, eq=False)
class Known:
    """A layer's output and ``∂L/∂output``, of one sample without batch dimension, in float64.

    An infinite ``error`` says that an entry of ``value`` is not known by itself.
    """

    value: Tensor
    error: Tensor
    delta: Tensor
    delta_error: Tensor  # of each entry by itself: not what follows from ``value`` or ``drift``
    bend: Tensor  # how fast each entry of ``delta`` moves with the same entry of ``value``
    precision: Tensor | None = None  # (n, n) inverse covariance of ``value``, if errors go together
    drift: float = 0.0  # the relative error that all of ``delta`` has in common
    told: int | None = None  # how many measurements it stands for, if fewer than its entries
    doubt: float = 1.0  # by how much ``error`` was reduced, its rows having met so well
    again: Callable[[Tensor], Known | None] | None = None  # linearised around a better ``value``

    @classmethod
    def straight(
        cls, value: Tensor, error: Tensor, delta: Tensor, delta_error: Tensor, drift: float = 0.0
    ) -> Known:
        """Where ``delta`` does not follow ``value``."""
        return cls(value, error, delta, delta_error, torch.zeros_like(value), drift=drift)

    def map(self, change: Callable[[Tensor], Tensor]) -> Known:
        """The same entries in another shape, their order kept."""

        def again(better: Tensor) -> Known | None:
            found = None if self.again is None else self.again(better.reshape(self.value.shape))
            return None if found is None else found.map(change)

        return replace(
            self,
            value=change(self.value), error=change(self.error), delta=change(self.delta),
            delta_error=change(self.delta_error), bend=change(self.bend), again=again,
        )  # fmt: skip

    def with_precision(self, precision: Tensor | None, doubt: float) -> Known:
        """With errors that go together."""
        return replace(self, precision=precision, doubt=doubt)

    @property
    def apart(self) -> Known:
        """With every error taken as independent of the others, those of ``delta`` included."""
        told = None if self.told is None else self.precision
        still = torch.zeros_like(self.bend)
        return replace(self, delta_error=self.own_delta_error, bend=still, precision=told)

    @property
    def own_delta_error(self) -> Tensor:
        """That of each entry of ``delta``, the part that follows from ``value`` included."""
        moved = torch.where(self.bend != 0, self.bend * self.error, 0.0)
        return self.delta_error.hypot(moved)


def combined(a: Tensor, a_error: Tensor, b: Tensor, b_error: Tensor) -> tuple[Tensor, Tensor]:
    """Two measurements of one thing, weighted by their precision."""
    tiny = torch.finfo(torch.double).tiny
    w_a, w_b = (error.square().clamp_min(tiny).reciprocal() for error in (a_error, b_error))
    return (a * w_a + b * w_b) / (w_a + w_b), (w_a + w_b).rsqrt()
