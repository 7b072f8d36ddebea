"""Pointwise activations whose derivative is a function of their output.

Each is a small linear basis for that derivative; probing finds the coefficients, so that a slope,
an α or the gain of a dropout layer needs no name. To add one, append it to ``ACTIVATIONS``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Activation:
    """``φ'`` in terms of ``φ``: a linear combination of ``basis(x)``, one entry a coefficient.

    ``homogeneous`` says that the basis only sees the sign of ``x``: then ``t`` follows linearly.
    ``powers`` says that it is made of powers of ``x``: then a sum over entries scales by itself.
    """

    name: str
    basis: Callable[[Tensor], tuple[Tensor, ...]]
    homogeneous: bool = False
    powers: tuple[int, ...] = ()

    def derivative(self, x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
        """``φ'`` at the places where the output is ``x``."""
        terms = zip(coefficients, self.basis(x), strict=True)
        return torch.stack([c * term for c, term in terms]).sum(0)


def _sides(x: Tensor) -> tuple[Tensor, ...]:
    return ((x > 0).to(x.dtype), (x < 0).to(x.dtype))


def _exponential_below(x: Tensor) -> tuple[Tensor, ...]:
    above, below = _sides(x)
    return (above, below, below * x)


def _softsign(x: Tensor) -> tuple[Tensor, ...]:
    return (torch.ones_like(x), x.abs(), x * x)


# The simplest first: the first basis that explains the probes is taken.
ACTIVATIONS: tuple[Activation, ...] = (
    Activation("piecewise linear", _sides, homogeneous=True),  # identity, ReLU, leaky, dropout gain
    Activation("sigmoid", lambda x: (x, x * x), powers=(1, 2)),
    Activation("tanh", lambda x: (torch.ones_like(x), x * x), powers=(0, 2)),
    Activation("ELU", _exponential_below),  # also SELU and CELU
    Activation("softplus", lambda x: (torch.ones_like(x), torch.exp(-x.clamp_min(0.0)))),
    Activation("softsign", _softsign),
)
