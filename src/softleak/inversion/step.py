"""One layer of a chain, and how to walk back through it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from softleak.inversion.state import Known
from softleak.share import GradientShare


@dataclass(frozen=True)
class LayerReport:
    """How well one layer's input was determined.

    ``condition`` is that of the scaled normal matrix; ``residual`` is the root mean square of the
    rows' misfits in units of their expected errors, about one if all errors are as predicted.
    """

    name: str
    rows: int
    unknowns: int
    condition: float
    residual: float
    determined: bool


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
