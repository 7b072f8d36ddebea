"""One layer of a chain, and how to walk back through it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from softleak.errors import ShareError
from softleak.inversion.state import Known
from softleak.share import GradientShare

REMEDY = "use softleak.reconstruct (gradient matching) instead"


@dataclass(frozen=True)
class LayerReport:
    """How well one layer's input was determined.

    ``condition`` is that of the scaled normal matrix, from below; ``residual`` is the root mean
    square of the rows' misfits in units of their expected errors, about one if all errors are as
    predicted.
    """

    name: str
    rows: int
    unknowns: int
    condition: float
    residual: float
    determined: bool


def gradient(share: GradientShare, name: str, like: Tensor) -> Tensor:
    """A parameter's gradient as it was sent, or why the walk ends here."""
    if name not in share:
        raise ShareError(
            f"the share lacks {name!r}, without which the input of that layer is not determined; "
            f"{REMEDY}"
        )
    if share[name].shape != like.shape:
        raise ShareError(
            f"the gradient {name!r} should be {tuple(like.shape)} as the model's parameter, got "
            f"{tuple(share[name].shape)}"
        )
    return share[name].to(like.device)


@dataclass(frozen=True, eq=False)
class Inverted:
    """What is known at a layer's input, and a report if something had to be solved for it."""

    known: Known
    report: LayerReport | None = None


class Step(Protocol):
    """A layer that can be walked back through."""

    @property
    def name(self) -> str:
        """Where it is in the model."""
        ...

    def back(self, out: Known, share: GradientShare) -> Inverted:
        """From what is known at its output to what is known at its input."""
        ...
