"""This module holds what is known between two layers of a network during the walk back.

Tensors belong to one sample, have no batch dimension and are in float64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

TINY = 1e-300  # the smallest divisor: it keeps a quotient by zero finite


@dataclass(frozen=True, eq=False)
class Measurement:
    """This is an estimate of a layer's output, with its errors.

    Attributes:
        value: The estimate, in the shape of the output; n is its number of entries.
        error: The standard error of each entry, in the same shape. It is infinite where an entry
            is not known by itself.
        precision: The inverse covariance (n, n) of the entries if their errors are correlated,
            and None if they are independent.
        measurements: How many independent measurements the precision stands for, if these are
            fewer than the entries (averages of several entries). None stands for n.
        error_reduction: The factor (1 or more) by which ``error`` was made smaller because the
            equations agreed better than expected.
    """

    value: Tensor
    error: Tensor
    precision: Tensor | None = None
    measurements: int | None = None
    error_reduction: float = 1.0

    def reshape(self, shape: tuple[int, ...]) -> Measurement:
        """Return the same entries, in the same order, in another shape."""
        return replace(self, value=self.value.reshape(shape), error=self.error.reshape(shape))


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """This is the derivative ``δ = ∂L/∂z`` of the loss by a layer's output z, with its errors.

    Attributes:
        delta: The derivative, in the shape of the output.
        error: The standard error that each entry has by itself. It counts neither what follows
            from the error of z nor ``scale_error``.
        curvature: How fast each entry of ``delta`` moves with the same entry of z:
            ``∂δ_i/∂z_i``.
        scale_error: The relative error that all entries have in common.
    """

    delta: Tensor
    error: Tensor
    curvature: Tensor
    scale_error: float = 0.0

    def reshape(self, shape: tuple[int, ...]) -> Sensitivity:
        """Return the same entries, in the same order, in another shape."""
        return replace(
            self,
            delta=self.delta.reshape(shape),
            error=self.error.reshape(shape),
            curvature=self.curvature.reshape(shape),
        )


@dataclass(frozen=True, eq=False)
class LayerState:
    """This is all that the walk knows between two layers: the output z of the lower, and δ."""

    measurement: Measurement
    sensitivity: Sensitivity

    @classmethod
    def uncoupled(
        cls, measurement: Measurement, delta: Tensor, error: Tensor, scale_error: float = 0.0
    ) -> LayerState:
        """Return a state whose ``delta`` does not move with the measured value."""
        still = torch.zeros_like(measurement.value)
        return cls(measurement, Sensitivity(delta, error, still, scale_error))

    def reshape(self, shape: tuple[int, ...]) -> LayerState:
        """Return the same entries, in the same order, in another shape."""
        return LayerState(self.measurement.reshape(shape), self.sensitivity.reshape(shape))

    def with_independent_errors(self) -> LayerState:
        """Return this state with all errors taken as independent, those of δ included.

        The precision matrix is dropped unless it stands for averages, which no list of separate
        errors can express. The part of δ's error that follows from z becomes its own.
        """
        z, sensitivity = self.measurement, self.sensitivity
        return LayerState(
            replace(z, precision=None if z.measurements is None else z.precision),
            replace(
                sensitivity,
                error=self.delta_error(),
                curvature=torch.zeros_like(sensitivity.curvature),
            ),
        )

    def delta_error(self) -> Tensor:
        """Return the standard error of each entry of δ, what follows from z's error included."""
        z, sensitivity = self.measurement, self.sensitivity
        curved = sensitivity.curvature != 0  # an unknown z says nothing where δ does not follow it
        followed = torch.where(curved, sensitivity.curvature * z.error, 0.0)
        return sensitivity.error.hypot(followed)


def combined(a: Tensor, a_error: Tensor, b: Tensor, b_error: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of two measurements of one quantity, weighted by 1/error², and its error."""
    tiny = torch.finfo(torch.double).tiny
    w_a, w_b = (error.square().clamp_min(tiny).reciprocal() for error in (a_error, b_error))
    return (a * w_a + b * w_b) / (w_a + w_b), (w_a + w_b).rsqrt()
