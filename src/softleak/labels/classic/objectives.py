"""The loss as a function of the searched scalar: Eq. 7, then a loss of the pseudo label.

Two ways to evaluate the same function: ``FullHead`` as published, ``Vectorised`` in O(C).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from softleak.labels.classic.losses import Loss
from softleak.labels.classic.row import Row


class Objective(Protocol):
    """What a search minimises. Differentiable."""

    def label(self, scalar: Tensor) -> Tensor:
        """Eq. 7: the pseudo label (C,) at one scalar ()."""
        ...

    def __call__(self, scalars: Tensor) -> Tensor:
        """The losses (S,) at the scalars (S,)."""
        ...


Evaluation = Callable[[Row, Loss], Objective]


@dataclass(frozen=True, eq=False)
class FullHead:
    """As published: the whole head for one scalar at a time, in the share's dtype.

    Without the published code's loops in Python over entries and classes, which only cost time;
    the benchmarks have them.
    """

    row: Row
    loss: Loss

    def label(self, scalar: Tensor) -> Tensor:
        """softmax(W (s g) + b) − ratios / s."""
        s = scalar.to(self.row.g)
        p = linear(s * self.row.g, self.row.W, self.row.b).softmax(-1)
        return p - self.row.ratios / s

    def __call__(self, scalars: Tensor) -> Tensor:
        """The losses, one after the other."""
        return torch.stack([self.loss(self.label(scalar)) for scalar in scalars])


@dataclass(frozen=True, eq=False)
class Vectorised:
    """``a = W g`` once, then O(C) per scalar and all scalars together, in float64."""

    row: Row
    loss: Loss
    a: Tensor = field(init=False)
    b: Tensor = field(init=False)
    ratios: Tensor = field(init=False)

    def __post_init__(self) -> None:
        a = (self.row.W @ self.row.g).double()
        object.__setattr__(self, "a", a)
        object.__setattr__(self, "b", self.row.b.double())
        object.__setattr__(self, "ratios", self.row.ratios.double())

    def label(self, scalar: Tensor) -> Tensor:
        """softmax(s a + b) − ratios / s."""
        return self._labels(scalar[None])[0]

    def __call__(self, scalars: Tensor) -> Tensor:
        """The losses, all at once."""
        return self.loss(self._labels(scalars))

    def _labels(self, scalars: Tensor) -> Tensor:
        s = scalars.to(self.a)[:, None]
        return (s * self.a + self.b).softmax(-1) - self.ratios / s
