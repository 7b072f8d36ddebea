"""This module remembers where the walk linearised an activation, so that it can do so again.

A saturated activation is first linearised around ``φ⁻¹(y)``. The convolution below may then find
that its output lies far from there; the tangent is moved to that better point.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from softleak.inversion.state import LayerState


class Linearisable(Protocol):
    """This is a step whose inverse is linearised around a point: a pointwise activation."""

    def linearised(self, out: LayerState, point: Tensor) -> LayerState:
        """Return the state at the input, to first order around the input ``point``."""
        ...

    def is_straight(self, out: LayerState, point: Tensor, other: Tensor) -> bool:
        """Tell whether the tangent at ``point`` describes the activation at ``other`` as well."""
        ...


class LosslessStep(Protocol):
    """This is a step with an exact inverse, through which a tangent can be carried."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the layer for one input."""
        ...

    def carried(self, out: LayerState) -> LayerState:
        """Return the state at the layer's input, exactly."""
        ...


@dataclass(frozen=True, eq=False)
class Tangent:
    """This says around which point the nearest activation above was linearised.

    Attributes:
        activation: The activation's step.
        out: The state at the activation's output.
        point: The input of the activation around which it was linearised.
        passed: The lossless steps that the walk has passed since, in its order.
    """

    activation: Linearisable
    out: LayerState
    point: Tensor
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

        Args:
            better: A better estimate of the value where the walk is now, in its shape.
        """
        for step in reversed(self.passed):
            better = step.forward(better)
        if self.activation.is_straight(self.out, self.point, better):
            return None
        return replace(self, point=better)
