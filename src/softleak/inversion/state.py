"""What is known between two layers during the walk back, and what a layer offers to it.

Tensors belong to one sample, have no batch dimension and are in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from softleak.core.errors import ShareError
from softleak.core.share import GradientShare
from softleak.inversion.results import LayerReport


@dataclass(frozen=True, eq=False)
class LayerState:
    """All that the walk knows between two layers: the lower one's output z, and ``δ = ∂L/∂z``."""

    value: Tensor  # the estimate of z, in its shape; n is its number of entries
    error: Tensor  # the standard errors of z, infinite where an entry is not known by itself
    delta: Tensor  # the derivative δ, in the shape of z
    # The standard error that each entry of δ has by itself. It counts neither what follows from
    # the error of z nor ``scale_error``.
    delta_error: Tensor
    curvature: Tensor  # how fast each entry of δ moves with the same entry of z: ``∂δ_i/∂z_i``
    scale_error: float = 0.0  # the relative error that all entries of δ have in common
    # The inverse covariance (n, n) of z if its errors are correlated, and None if they are
    # independent.
    precision: Tensor | None = None
    # How many independent measurements the precision stands for, if these are fewer than the
    # entries (averages of several entries). None stands for n.
    measurements: int | None = None
    # The factor (1 or more) by which ``error`` was made smaller because the equations agreed
    # better than expected.
    error_reduction: float = 1.0
    # Return, for a better estimate of z, this state with the nearest activation above linearised
    # around it, or None if the present tangent describes that point too. Without it the tangent
    # may not be moved any more, or there is none.
    moved: Callable[[Tensor], LayerState | None] | None = None

    @classmethod
    def uncoupled(
        cls, value: Tensor, error: Tensor, delta: Tensor, delta_error: Tensor,
        scale_error: float = 0.0,
    ) -> LayerState:  # fmt: skip
        """Return a state whose ``delta`` does not move with the measured value."""
        return cls(value, error, delta, delta_error, torch.zeros_like(value), scale_error)

    def reshape(self, shape: tuple[int, ...]) -> LayerState:
        """Return the same entries, in the same order, in another shape."""
        own = ("value", "error", "delta", "delta_error", "curvature")
        return replace(self, **{name: getattr(self, name).reshape(shape) for name in own})

    def with_independent_errors(self) -> LayerState:
        """Return this state with all errors taken as independent, those of δ included.

        The precision matrix is dropped unless it stands for averages, which no list of separate
        errors can express. The part of δ's error that follows from z becomes its own.
        """
        return replace(
            self,
            delta_error=self.whole_delta_error(),
            curvature=torch.zeros_like(self.curvature),
            precision=None if self.measurements is None else self.precision,
        )

    def whole_delta_error(self) -> Tensor:
        """Return the standard error of each entry of δ, what follows from z's error included."""
        curved = self.curvature != 0  # an unknown z says nothing where δ does not follow it
        followed = torch.where(curved, self.curvature * self.error, 0.0)
        return self.delta_error.hypot(followed)


def combined(a: Tensor, a_error: Tensor, b: Tensor, b_error: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of two measurements of one quantity, weighted by 1/error², and its error."""
    tiny = torch.finfo(torch.double).tiny
    w_a, w_b = (error.square().clamp_min(tiny).reciprocal() for error in (a_error, b_error))
    return (a * w_a + b * w_b) / (w_a + w_b), (w_a + w_b).rsqrt()


REMEDY = "use softleak.reconstruct (gradient matching) instead"


class Step(Protocol):
    """A layer that can be walked back through."""

    @property
    def name(self) -> str:
        """Return the layer's name in the model."""
        ...

    def back(self, out: LayerState, share: GradientShare) -> tuple[LayerState, LayerReport | None]:
        """Return what is known at the layer's input, by what is known at its output.

        If a system had to be solved for the input, how well it was determined is reported.
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
