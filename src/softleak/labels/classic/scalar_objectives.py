"""This module holds the loss as a function of the searched scalar: Eq. 7, then a loss of the pseudo
label.

There are two ways to evaluate the same function: ``FullHead`` does what the published code does,
and ``Vectorised`` takes O(C) operations per scalar.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from softleak.labels.classic.losses import Loss
from softleak.labels.classic.row import RowRatios


class ScalarObjective(Protocol):
    """The function that a search minimises. It is differentiable."""

    def label(self, scalar: Tensor) -> Tensor:
        """Return the pseudo label (C,) of Eq. 7 at one scalar ()."""
        ...

    def __call__(self, scalars: Tensor) -> Tensor:
        """Return the losses (S,) at scalars (S,)."""
        ...


Evaluation = Callable[[RowRatios, Loss], ScalarObjective]


@dataclass(frozen=True, eq=False)
class FullHead:
    """This is the published evaluation: the whole head for one scalar at a time, in the share's
    dtype.

    The published code's loops in Python over entries and classes are left out, since they only cost
    time. The benchmarks have them.
    """

    row: RowRatios
    loss: Loss

    def label(self, scalar: Tensor) -> Tensor:
        """Return ``softmax(W (s g) + b) − ratios / s`` (C,)."""
        s = scalar.to(self.row.g)
        p = linear(s * self.row.g, self.row.W, self.row.b).softmax(-1)
        return p - self.row.ratios / s

    def __call__(self, scalars: Tensor) -> Tensor:
        """Return the losses (S,), computed one after the other."""
        return torch.stack([self.loss(self.label(scalar)) for scalar in scalars])


@dataclass(frozen=True, eq=False)
class Vectorised:
    """This is the fast evaluation: ``a = W g`` once, then all scalars together, in float64."""

    row: RowRatios
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
        """Return ``softmax(s a + b) − ratios / s`` (C,)."""
        return self._labels(scalar[None])[0]

    def __call__(self, scalars: Tensor) -> Tensor:
        """Return the losses (S,), computed all at once."""
        return self.loss(self._labels(scalars))

    def _labels(self, scalars: Tensor) -> Tensor:
        """Return the pseudo labels (S, C) at scalars (S,)."""
        s = scalars.to(self.a)[:, None]
        return (s * self.a + self.b).softmax(-1) - self.ratios / s
