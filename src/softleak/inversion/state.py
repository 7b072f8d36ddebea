"""What is known between two layers during the walk back, and what a layer offers to it.

Tensors belong to one sample, have no batch dimension and are in float64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from softleak.core.errors import ShareError
from softleak.core.share import GradientShare


@dataclass(frozen=True, eq=False)
class Measurement:
    """An estimate of a layer's output, with its errors."""

    value: Tensor  # the estimate, in the shape of the output; n is its number of entries
    # The standard error of each entry, in the same shape. It is infinite where an entry is not
    # known by itself.
    error: Tensor
    # The inverse covariance (n, n) of the entries if their errors are correlated, and None if
    # they are independent.
    precision: Tensor | None = None
    # How many independent measurements the precision stands for, if these are fewer than the
    # entries (averages of several entries). None stands for n.
    measurements: int | None = None
    # The factor (1 or more) by which ``error`` was made smaller because the equations agreed
    # better than expected.
    error_reduction: float = 1.0

    def reshape(self, shape: tuple[int, ...]) -> Measurement:
        """Return the same entries, in the same order, in another shape."""
        return replace(self, value=self.value.reshape(shape), error=self.error.reshape(shape))


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """The derivative ``δ = ∂L/∂z`` of the loss by a layer's output z, with its errors."""

    delta: Tensor  # the derivative, in the shape of the output
    # The standard error that each entry has by itself. It counts neither what follows from the
    # error of z nor ``scale_error``.
    error: Tensor
    # How fast each entry of ``delta`` moves with the same entry of z: ``∂δ_i/∂z_i``.
    curvature: Tensor
    scale_error: float = 0.0  # the relative error that all entries have in common

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
    """All that the walk knows between two layers: the output z of the lower, and δ."""

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


class Linearisable(Protocol):
    """A step whose inverse is linearised around a point: a pointwise activation."""

    def linearised(self, out: LayerState, point: Tensor) -> LayerState:
        """Return the state at the input, to first order around the input ``point``."""
        ...

    def is_straight(self, out: LayerState, point: Tensor, other: Tensor) -> bool:
        """Tell whether the tangent at ``point`` describes the activation at ``other`` as well."""
        ...


class LosslessStep(Protocol):
    """A step with an exact inverse, through which a tangent can be carried."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the layer for one input."""
        ...

    def carried(self, out: LayerState) -> LayerState:
        """Return the state at the layer's input, exactly."""
        ...


@dataclass(frozen=True, eq=False)
class Tangent:
    """Around which point the nearest activation above was linearised."""

    activation: Linearisable  # the activation's step
    out: LayerState  # the state at the activation's output
    point: Tensor  # the input of the activation around which it was linearised
    # The lossless steps that the walk has passed since, in its order.
    passed: tuple[LosslessStep, ...] = ()

    def state(self) -> LayerState:
        """Return the state where the walk is now, below all passed steps."""
        state = self.activation.linearised(self.out, self.point)
        for step in self.passed:
            state = step.carried(state)
        return state

    def through(self, step: LosslessStep) -> Tangent:
        """Return this tangent after one more lossless step."""
        return replace(self, passed=(*self.passed, step))

    def moved(self, better: Tensor) -> Tangent | None:
        """Return the tangent at a better point, or None if this one describes that point too.

        ``better`` is an estimate of the value where the walk is now, in its shape.
        """
        for step in reversed(self.passed):
            better = step.forward(better)
        if self.activation.is_straight(self.out, self.point, better):
            return None
        return replace(self, point=better)


REMEDY = "use softleak.reconstruct (gradient matching) instead"


@dataclass(frozen=True)
class LayerReport:
    """How well the equations ("rows") of one layer determined its input."""

    name: str  # the layer's name in the model
    rows: int  # how many rows there were
    unknowns: int  # how many entries the input has
    condition: float  # A lower bound of the condition number of the scaled normal matrix
    # The root mean square of the rows' misfits in units of their expected errors. It is about
    # one if all errors are as large as predicted.
    residual: float
    determined: bool  # whether the rows determined every direction of the input


@dataclass(frozen=True, eq=False)
class Inverted:
    """What a step returns."""

    state: LayerState  # what is known at the layer's input
    # How well the input was determined, if a system had to be solved for it.
    report: LayerReport | None = None
    # Where the nearest activation above was linearised, if it may be moved later.
    tangent: Tangent | None = None


class Step(Protocol):
    """A layer that can be walked back through."""

    @property
    def name(self) -> str:
        """Return the layer's name in the model."""
        ...

    def back(
        self, out: LayerState, share: GradientShare, tangent: Tangent | None = None
    ) -> Inverted:
        """Return what is known at the layer's input, by what is known at its output.

        ``tangent`` says where the nearest activation above was linearised. It is None if that may
        not be moved any more, or there is none.
        """
        ...


def gradient(share: GradientShare, name: str, like: Tensor) -> Tensor:
    """Return a parameter's gradient as it was sent, on the device of the parameter ``like``.

    Raises:
        ShareError: If the share lacks the gradient, or its shape is another.
    """
    if name not in share:
        raise ShareError(
            f"the share lacks {name!r}, without which the input of that layer is not determined; "
            f"{REMEDY}"
        )
    if share[name].shape != like.shape:
        raise ShareError(
            f"the gradient {name!r} should be {tuple(like.shape)} as the model's parameter, got "
            f"{tuple(share[name].shape)}; check that the share was computed on this model"
        )
    return share[name].to(like.device)
