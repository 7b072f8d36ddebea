"""Pointwise activations ``y = φ(a)`` and their inverses.

The input is ``a = φ⁻¹(y)``, and ``∂L/∂a = φ'(a) ∂L/∂y``, where φ' follows from the output (§4.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softleak.core.share import GradientShare
from softleak.inversion.state import Inverted, LayerState, Measurement, Sensitivity, Tangent
from softleak.numerics.least_squares import TINY

SOFTPLUS_THRESHOLD = 20.0  # PyTorch's default: a softplus is straight above it, up to rounding
LARGEST_EXPONENT = 500.0  # exp of it is still far from float64's overflow
RANGE_MARGIN = 1e-15  # how near to an end of its range, of size one, float64 can tell an output
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805
POSITIVE_ERRORS = 4.0  # standard errors above zero from which on an output of a ReLU was not cut
LONGEST_STEP = 1.0  # how far along the tangent a measured output may move the input


@dataclass(frozen=True)
class InvertibleActivation:
    """An activation φ and its inverse, pointwise."""

    forward: Callable[[Tensor], Tensor]  # ``φ(a)``
    # ``φ⁻¹(y)``, for outputs strictly between ``low`` and ``high``.
    inverse: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]  # ``φ'(a)`` as a function of the output y
    # ``φ''(a)`` as a function of the output y.
    curvature: Callable[[Tensor], Tensor] = torch.zeros_like
    low: float = -torch.inf  # the lower end of φ's range
    high: float = torch.inf  # the upper end of φ's range
    cuts: bool = False  # whether φ maps every negative input to zero, as a ReLU does


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
    """Return how to invert an activation; None if its slope does not follow from its output.

    Such are GELU, SiLU and PReLU, and every module that is no activation.
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


@dataclass(frozen=True)
class ActivationStep:
    """An activation layer of a chain."""

    name: str
    phi: InvertibleActivation

    def back(
        self, out: LayerState, share: GradientShare, tangent: Tangent | None = None
    ) -> Inverted:
        found = Tangent(self, out, self._first_point(out))
        return Inverted(found.state(), tangent=found)

    def linearised(self, out: LayerState, point: Tensor) -> LayerState:
        """Return the state at the input, to first order around the input ``point``.

        With ``y = φ(point)`` the input is ``point + (value − y)/φ'``, its error ``error/φ'``, and
        ``∂δ/∂a = φ'' ∂L/∂y + φ'² ∂²L/∂y²``.
        """
        z, above = out.measurement, out.sensitivity
        hidden = self._hidden(out)
        y = self.phi.forward(point)
        slope = self.phi.slope(y)
        steep = slope.clamp_min(TINY)
        curvature = self.phi.curvature(y) * above.delta + slope.square() * above.curvature
        step = torch.where(hidden, 0.0, (z.value - y) / steep).clamp(-LONGEST_STEP, LONGEST_STEP)
        return LayerState(
            Measurement(
                point + step,
                torch.where(hidden | (slope <= 0), torch.inf, z.error / steep),
                self._precision(out, slope),
            ),
            Sensitivity(
                above.delta * slope + curvature * step,
                (slope * above.error).hypot(self._kink_error(y, out, hidden)),
                curvature,
                above.scale_error,
            ),
        )

    def is_straight(self, out: LayerState, point: Tensor, other: Tensor) -> bool:
        """Tell whether the tangent at ``point`` meets ``φ(other)`` to within the output's error."""
        y = self.phi.forward(point)
        straight = y + self.phi.slope(y) * (other - point)
        missed = (self.phi.forward(other) - straight).abs() > out.measurement.error
        return not bool((missed & ~self._hidden(out)).any())

    def _hidden(self, out: LayerState) -> Tensor:
        """Return which outputs a ReLU has cut off, or probably has: nothing tells their inputs."""
        z = out.measurement
        limit = POSITIVE_ERRORS * z.error_reduction * z.error
        return (z.value <= limit) & self.phi.cuts

    def _first_point(self, out: LayerState) -> Tensor:
        """Return ``φ⁻¹(y)``, an output at an end of φ's range taken to be one error inside."""
        z, hidden = out.measurement, self._hidden(out)
        margin = z.error.clamp(RANGE_MARGIN, (self.phi.high - self.phi.low) / 4)
        y = z.value.maximum(self.phi.low + margin).minimum(self.phi.high - margin)
        return torch.where(hidden, 0.0, self.phi.inverse(torch.where(hidden, 0.0, y)))

    def _kink_error(self, y: Tensor, out: LayerState, hidden: Tensor) -> Tensor:
        """Return the error of δ where an error of ``y`` may cross a kink of φ.

        It is half the jump of φ' between ``y ± error``, less what the curvature explains.
        """
        error, delta = out.measurement.error, out.sensitivity.delta
        jump = (self.phi.slope(y + error) - self.phi.slope(y - error)) / 2
        smooth = self.phi.curvature(y) / self.phi.slope(y).clamp_min(TINY) * error
        return torch.where(hidden, 0.0, (jump - smooth) * delta).abs()

    def _precision(self, out: LayerState, slope: Tensor) -> Tensor | None:
        """Return the precision of the input, ``diag(φ') P diag(φ')``, unless φ cuts entries off."""
        precision = out.measurement.precision
        if precision is None or self.phi.cuts:
            return None
        d = slope.flatten()
        return (precision * d).mul_(d[:, None])
