"""This module inverts activations ``y = φ(a)`` whose slope φ' follows from their output y."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SOFTPLUS_THRESHOLD = 20.0  # PyTorch's default: a softplus is straight above it, up to rounding
LARGEST_EXPONENT = 500.0  # exp of it is still far from float64's overflow
RANGE_MARGIN = 1e-15  # how near to an end of its range, of size one, float64 can tell an output
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805


@dataclass(frozen=True)
class InvertibleActivation:
    """This is an activation φ and its inverse, pointwise.

    Attributes:
        forward: ``φ(a)``.
        inverse: ``φ⁻¹(y)``, for outputs strictly between ``low`` and ``high``.
        slope: ``φ'(a)`` as a function of the output y.
        curvature: ``φ''(a)`` as a function of the output y.
        low: The lower end of φ's range.
        high: The upper end of φ's range.
        cuts: Whether φ maps every negative input to zero, as a ReLU does.
    """

    forward: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    curvature: Callable[[Tensor], Tensor] = torch.zeros_like
    low: float = -torch.inf
    high: float = torch.inf
    cuts: bool = False


def _leaky(slope: float) -> InvertibleActivation:
    """Return ``a`` above zero and ``slope · a`` below."""
    return InvertibleActivation(
        lambda a: F.leaky_relu(a, slope),
        lambda y: torch.where(y > 0, y, y / slope),
        lambda y: torch.where(y > 0, torch.ones_like(y), slope),
    )


def _exponential(
    forward: Callable[[Tensor], Tensor], depth: float, width: float = 1.0, straight: float = 1.0
) -> InvertibleActivation:
    """Return ``straight · a`` above zero and ``depth · (exp(a/width) − 1)`` below."""
    return InvertibleActivation(
        forward,
        lambda y: torch.where(
            y > 0, y / straight, width * torch.log1p((y / depth).clamp_min(RANGE_MARGIN - 1))
        ),
        lambda y: torch.where(y > 0, straight, (y + depth) / width),
        lambda y: torch.where(y > 0, 0.0, (y + depth) / width**2),
        low=-depth,
    )


def _softplus(beta: float) -> InvertibleActivation:
    """Return ``log(1 + exp(beta · a))/beta``, whose slope is ``1 − exp(−beta · y)``."""
    return InvertibleActivation(
        lambda a: F.softplus(a, beta),
        lambda y: torch.log(torch.expm1((beta * y).clamp(RANGE_MARGIN, LARGEST_EXPONENT))) / beta,
        lambda y: -torch.expm1(-beta * y),
        lambda y: -beta * torch.expm1(-beta * y) * torch.exp(-beta * y),
        low=0.0,
    )


RELU = InvertibleActivation(torch.relu, lambda y: y, lambda y: (y > 0).to(y), cuts=True)
SIGMOID = InvertibleActivation(
    torch.sigmoid, torch.logit, lambda y: y * (1 - y), lambda y: y * (1 - y) * (1 - 2 * y),
    low=0.0, high=1.0,
)  # fmt: skip
TANH = InvertibleActivation(
    torch.tanh, torch.atanh, lambda y: 1 - y * y, lambda y: -2 * y * (1 - y * y),
    low=-1.0, high=1.0,
)  # fmt: skip
SOFTSIGN = InvertibleActivation(
    F.softsign, lambda y: y / (1 - y.abs()), lambda y: (1 - y.abs()).square(),
    lambda y: -2 * y.sign() * (1 - y.abs()) ** 3, low=-1.0, high=1.0,
)  # fmt: skip
LOG_SIGMOID = InvertibleActivation(
    F.logsigmoid, lambda y: y - torch.log(-torch.expm1(y)), lambda y: -torch.expm1(y),
    lambda y: y.exp() * torch.expm1(y), high=0.0,
)  # fmt: skip
SELU = _exponential(F.selu, SELU_SCALE * SELU_ALPHA, straight=SELU_SCALE)
FIXED: Mapping[type[nn.Module], InvertibleActivation] = {
    nn.ReLU: RELU, nn.Sigmoid: SIGMOID, nn.Tanh: TANH, nn.SELU: SELU, nn.Softsign: SOFTSIGN,
    nn.LogSigmoid: LOG_SIGMOID,
}  # fmt: skip


def inverse_of(module: nn.Module) -> InvertibleActivation | None:
    """Return how to invert an activation module.

    Args:
        module: Any module.

    Returns:
        The activation with its inverse, or None if the module is no activation whose slope
        follows from its output (GELU, SiLU, PReLU, pooling, ...).
    """
    match module:
        case nn.LeakyReLU() if module.negative_slope > 0:
            return _leaky(module.negative_slope)
        case nn.ELU() if module.alpha > 0:
            return _exponential(partial(F.elu, alpha=module.alpha), module.alpha)
        case nn.CELU() if module.alpha > 0:
            return _exponential(partial(F.celu, alpha=module.alpha), module.alpha, module.alpha)
        case nn.Softplus() if module.threshold >= SOFTPLUS_THRESHOLD:
            return _softplus(float(module.beta))
        case _:
            return next((phi for kind, phi in FIXED.items() if isinstance(module, kind)), None)
