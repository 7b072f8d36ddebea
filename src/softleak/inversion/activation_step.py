"""This module inverts pointwise activations ``y = φ(a)``.

The input is ``a = φ⁻¹(y)``, and ``∂L/∂a = φ'(a) ∂L/∂y``, where φ' follows from the output (§4.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.inversion.inverse_activations import RANGE_MARGIN, InvertibleActivation
from softleak.inversion.state import TINY, LayerState, Measurement, Sensitivity
from softleak.inversion.step import Inverted
from softleak.inversion.tangent import Tangent
from softleak.share import GradientShare


@dataclass(frozen=True)
class ActivationSettings:
    """These are the settings of an activation's inversion.

    Attributes:
        positive_errors: An output of a ReLU counts as positive if it is this many standard errors
            above zero. Below that it was probably cut off.
        longest_step: How far along the tangent, in units of the input, a measured output may move
            the input away from the point of linearisation.
    """

    positive_errors: float = 4.0
    longest_step: float = 1.0


ACTIVATION_SETTINGS = ActivationSettings()


@dataclass(frozen=True)
class ActivationStep:
    """This is an activation layer of a chain."""

    name: str
    phi: InvertibleActivation
    settings: ActivationSettings = ACTIVATION_SETTINGS

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
        longest = self.settings.longest_step
        step = torch.where(hidden, 0.0, (z.value - y) / steep).clamp(-longest, longest)
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
        limit = self.settings.positive_errors * z.error_reduction * z.error
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
