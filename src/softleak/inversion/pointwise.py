"""Pointwise activations, inverted: ``a = φ⁻¹(y)`` and ``∂L/∂a = φ' ∂L/∂y``, φ' from the output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softleak.inversion.state import TINY, Known
from softleak.inversion.step import Inverted
from softleak.share import GradientShare

SURE = 4.0  # errors: an output of a ReLU this far from zero is positive
FAR = 1.0  # how far from where it was linearised an activation is believed to be straight
EDGE = 1e-15  # of a range of one: what float64 tells from its end


@dataclass(frozen=True)
class Inverse:
    """An activation, its inverse, and as functions of the output its slope and curvature."""

    forward: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    curvature: Callable[[Tensor], Tensor] = torch.zeros_like
    low: float = -torch.inf
    high: float = torch.inf
    cuts: bool = False  # whether it maps everything below zero to zero


@dataclass(frozen=True)
class Activation:
    """An activation layer of a chain."""

    name: str
    phi: Inverse

    def back(self, out: Known, share: GradientShare) -> Inverted:
        # What a ReLU has cut off is not known, and what is almost zero was probably cut off.
        hidden = (out.value <= SURE * out.doubt * out.error) & self.phi.cuts
        # An output too near an end of the range to tell is taken to be one error away from it.
        margin = out.error.clamp(EDGE, (self.phi.high - self.phi.low) / 4)
        y = out.value.maximum(self.phi.low + margin).minimum(self.phi.high - margin)
        y = torch.where(hidden, 0.0, y)
        return Inverted(self._around(out, torch.where(hidden, 0.0, self.phi.inverse(y)), hidden))

    def _around(self, out: Known, a: Tensor, hidden: Tensor) -> Known:
        """What the output says of the input near ``a``, to first order."""
        y = self.phi.forward(a)
        slope = self.phi.slope(y)
        bend = self.phi.curvature(y) * out.delta + slope.square() * out.bend
        steep = slope.clamp_min(TINY)
        off = torch.where(hidden, 0.0, (out.value - y) / steep).clamp(-FAR, FAR)

        def again(better: Tensor) -> Known | None:
            straight = y + slope * (better - a)
            missed = (self.phi.forward(better) - straight).abs() > out.error
            return self._around(out, better, hidden) if bool((missed & ~hidden).any()) else None

        return Known(
            a + off,
            torch.where(hidden | (slope <= 0), torch.inf, out.error / steep),
            out.delta * slope + bend * off,
            (slope * out.delta_error).hypot(self._kink(y, out, hidden)),
            bend,
            self._precision(out, slope),
            drift=out.drift,
            again=again,
        )

    def _kink(self, y: Tensor, out: Known, hidden: Tensor) -> Tensor:
        """What the error of ``y`` does to ``delta`` beyond the curvature: at a kink, the jump."""
        jump = (self.phi.slope(y + out.error) - self.phi.slope(y - out.error)) / 2
        smooth = self.phi.curvature(y) / self.phi.slope(y).clamp_min(TINY) * out.error
        return torch.where(hidden, 0.0, (jump - smooth) * out.delta).abs()

    def _precision(self, out: Known, slope: Tensor) -> Tensor | None:
        if out.precision is None or self.phi.cuts:
            return None
        d = slope.flatten()
        return (out.precision * d).mul_(d[:, None])


def _leaky(slope: float) -> Inverse:
    return Inverse(
        lambda a: F.leaky_relu(a, slope),
        lambda y: torch.where(y > 0, y, y / slope),
        lambda y: torch.where(y > 0, torch.ones_like(y), slope),
    )


def _elu(alpha: float) -> Inverse:
    return Inverse(
        lambda a: F.elu(a, alpha),
        lambda y: torch.where(y > 0, y, torch.log1p((y / alpha).clamp_min(EDGE - 1))),
        lambda y: torch.where(y > 0, 1.0, y + alpha),
        lambda y: torch.where(y > 0, 0.0, y + alpha),
        low=-alpha,
    )


def _softplus(beta: float) -> Inverse:
    return Inverse(
        lambda a: F.softplus(a, beta),
        lambda y: torch.log(torch.expm1((beta * y).clamp(EDGE, 500))) / beta,
        lambda y: -torch.expm1(-beta * y),
        lambda y: -beta * torch.expm1(-beta * y) * torch.exp(-beta * y),
        low=0.0,
    )


RELU = Inverse(torch.relu, lambda y: y, lambda y: (y > 0).to(y), cuts=True)
SIGMOID = Inverse(
    torch.sigmoid, torch.logit, lambda y: y * (1 - y), lambda y: y * (1 - y) * (1 - 2 * y),
    low=0.0, high=1.0,
)  # fmt: skip
TANH = Inverse(
    torch.tanh, torch.atanh, lambda y: 1 - y * y, lambda y: -2 * y * (1 - y * y),
    low=-1.0, high=1.0,
)  # fmt: skip


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
