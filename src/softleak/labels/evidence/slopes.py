"""Pointwise activations whose derivative is a function of their output.

Each is described by a small linear basis for that derivative. Probing finds the coefficients, so a
slope, an α or the gain of a dropout layer needs no name. To add an activation, append it to
``KNOWN_ACTIVATIONS``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Activation:
    """This is the derivative ``φ'`` as a linear combination of functions of the output ``x =
    φ(z)``.

    Attributes:
        name: what it is called in explanations.
        basis: the functions; ``basis(x)`` has one tensor for each coefficient.
        homogeneous: whether the basis depends on the sign of ``x`` alone. Then ``t`` follows
            linearly.
        powers: the exponents, if the basis consists of powers of ``x``. Then sums over entries
            need to be computed once for all scales.
    """

    name: str
    basis: Callable[[Tensor], tuple[Tensor, ...]]
    homogeneous: bool = False
    powers: tuple[int, ...] = ()

    def derivative(self, x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
        """Return ``φ'`` where the output is ``x``, of the same shape."""
        terms = zip(coefficients, self.basis(x), strict=True)
        return torch.stack([c * term for c, term in terms]).sum(0)


def _sides(x: Tensor) -> tuple[Tensor, ...]:
    """Return the indicators of positive and of negative outputs."""
    return ((x > 0).to(x.dtype), (x < 0).to(x.dtype))


def _exponential_below(x: Tensor) -> tuple[Tensor, ...]:
    """Return a basis for ``φ' = 1`` above zero and ``φ' = φ + α`` below."""
    above, below = _sides(x)
    return (above, below, below * x)


def _softsign(x: Tensor) -> tuple[Tensor, ...]:
    """Return a basis for ``φ' = (1 − |φ|)²``."""
    return (torch.ones_like(x), x.abs(), x * x)


# The first basis that explains the probes is taken, so simpler ones come first.
KNOWN_ACTIVATIONS: tuple[Activation, ...] = (
    Activation("piecewise linear", _sides, homogeneous=True),  # identity, ReLU, leaky, dropout gain
    Activation("sigmoid", lambda x: (x, x * x), powers=(1, 2)),
    Activation("tanh", lambda x: (torch.ones_like(x), x * x), powers=(0, 2)),
    Activation("ELU", _exponential_below),  # also SELU and CELU
    Activation("softplus", lambda x: (torch.ones_like(x), torch.exp(-x.clamp_min(0.0)))),
    Activation("softsign", _softsign),
)
