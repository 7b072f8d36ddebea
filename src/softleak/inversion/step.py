"""What a layer of a chain offers to the walk back, and what it hands on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from softleak.core.errors import ShareError
from softleak.core.share import GradientShare
from softleak.inversion.state import LayerState, Tangent

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
        """Return what is known at the layer's input.

        Args:
            out: What is known at the layer's output.
            share: The gradients that the client sent.
            tangent: Where the nearest activation above was linearised; None if it may not be
                moved any more, or there is none.
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
