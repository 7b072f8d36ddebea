"""Pointwise activations, inverted: ``a = φ⁻¹(y)`` and ``∂L/∂a = φ' ∂L/∂y``, φ' from the output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softleak.inversion.state import Known
from softleak.inversion.step import Inverted
from softleak.share import GradientShare

SURE = 4.0  # errors: an output of a ReLU this far from zero is positive
EDGE = 1e-15  # how close to the ends of its range an output of a sigmoid is taken for


@dataclass(frozen=True)
class Inverse:
    """An activation: its inverse, its slope as a function of the output, the output's range."""

    inverse: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    low: float = -torch.inf
    high: float = torch.inf
    cuts: bool = False  # whether it maps everything below zero to zero


@dataclass(frozen=True)
class Activation:
    """An activation layer of a chain."""

    name: str
    phi: Inverse

    def back(self, out: Known, share: GradientShare) -> Inverted:
        y = out.value.clamp(self.phi.low + EDGE, self.phi.high - EDGE)
        # What a ReLU has cut off is not known, and what is almost zero was probably cut off.
        hidden = (out.value <= SURE * out.error) & self.phi.cuts
        y = torch.where(hidden, 0.0, y)
        slope = self.phi.slope(y)
        bend = (self.phi.slope(y + out.error) - self.phi.slope(y - out.error)).abs() / 2
        error = torch.where(slope > 0, out.error / slope.clamp_min(1e-300), torch.inf)
        known = Known(
            torch.where(hidden, 0.0, self.phi.inverse(y)),
            torch.where(hidden, torch.inf, error),
            out.delta * slope,
            (slope * out.delta_error).hypot(torch.where(hidden, 0.0, bend) * out.delta),
        )
        return Inverted(known)


def _leaky(slope: float) -> Inverse:
    return Inverse(
        lambda y: torch.where(y > 0, y, y / slope), lambda y: torch.where(y > 0, 1.0, slope).to(y)
    )


def _elu(alpha: float) -> Inverse:
    return Inverse(
        lambda y: torch.where(y > 0, y, torch.log1p((y / alpha).clamp_min(EDGE - 1))),
        lambda y: torch.where(y > 0, 1.0, y + alpha),
        low=-alpha,
    )


def _softplus(beta: float) -> Inverse:
    return Inverse(
        lambda y: torch.log(torch.expm1((beta * y).clamp(EDGE, 500))) / beta,
        lambda y: -torch.expm1(-beta * y),
        low=0.0,
    )


RELU = Inverse(lambda y: y, lambda y: (y > 0).to(y), cuts=True)
SIGMOID = Inverse(torch.logit, lambda y: y * (1 - y), low=0.0, high=1.0)
TANH = Inverse(torch.atanh, lambda y: 1 - y * y, low=-1.0, high=1.0)


def inverse_of(module: nn.Module) -> Inverse | None:
    """How to invert a module, if it is an activation whose slope follows from its output."""
    match module:
        case nn.ReLU():
            return RELU
        case nn.Sigmoid():
            return SIGMOID
        case nn.Tanh():
            return TANH
        case nn.LeakyReLU() if module.negative_slope > 0:
            return _leaky(module.negative_slope)
        case nn.ELU():
            return _elu(module.alpha)
        case nn.Softplus():
            return _softplus(float(module.beta))
        case _:
            return None
