"""Activations whose slope follows from their output, with their inverses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STRAIGHT = 20.0  # where PyTorch by default takes a softplus to be straight, to within rounding
EDGE = 1e-15  # of a range of one: what float64 tells from its end
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805


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


def _leaky(slope: float) -> Inverse:
    return Inverse(
        lambda a: F.leaky_relu(a, slope),
        lambda y: torch.where(y > 0, y, y / slope),
        lambda y: torch.where(y > 0, torch.ones_like(y), slope),
    )


def _exponential(
    forward: Callable[[Tensor], Tensor], depth: float, width: float = 1.0, straight: float = 1.0
) -> Inverse:
    """Of ``straight · a`` above zero, ``depth · (exp(a / width) − 1)`` below."""
    return Inverse(
        forward,
        lambda y: torch.where(
            y > 0, y / straight, width * torch.log1p((y / depth).clamp_min(EDGE - 1))
        ),
        lambda y: torch.where(y > 0, straight, (y + depth) / width),
        lambda y: torch.where(y > 0, 0.0, (y + depth) / width**2),
        low=-depth,
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
SOFTSIGN = Inverse(
    F.softsign, lambda y: y / (1 - y.abs()), lambda y: (1 - y.abs()).square(),
    lambda y: -2 * y.sign() * (1 - y.abs()) ** 3, low=-1.0, high=1.0,
)  # fmt: skip
LOG_SIGMOID = Inverse(
    F.logsigmoid, lambda y: y - torch.log(-torch.expm1(y)), lambda y: -torch.expm1(y),
    lambda y: y.exp() * torch.expm1(y), high=0.0,
)  # fmt: skip
SELU = _exponential(F.selu, SELU_SCALE * SELU_ALPHA, straight=SELU_SCALE)
FIXED: Mapping[type[nn.Module], Inverse] = {
    nn.ReLU: RELU, nn.Sigmoid: SIGMOID, nn.Tanh: TANH, nn.SELU: SELU, nn.Softsign: SOFTSIGN,
    nn.LogSigmoid: LOG_SIGMOID,
}  # fmt: skip


def inverse_of(module: nn.Module) -> Inverse | None:
    """How to invert a module, if it is an activation whose slope follows from its output."""
    match module:
        case nn.LeakyReLU() if module.negative_slope > 0:
            return _leaky(module.negative_slope)
        case nn.ELU() if module.alpha > 0:
            return _exponential(partial(F.elu, alpha=module.alpha), module.alpha)
        case nn.CELU() if module.alpha > 0:
            return _exponential(partial(F.celu, alpha=module.alpha), module.alpha, module.alpha)
        case nn.Softplus() if module.threshold >= STRAIGHT:
            return _softplus(float(module.beta))
        case _:
            return next((phi for kind, phi in FIXED.items() if isinstance(module, kind)), None)
