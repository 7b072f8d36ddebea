"""A defence (§5.2): what a client does to its gradients before it sends them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from softleak.errors import DefenseError
from softleak.share import GradientShare


@runtime_checkable
class Defense(Protocol):
    """Share in, share out; the given one stays as it was."""

    def __call__(self, share: GradientShare) -> GradientShare:
        """What is sent instead of ``share``."""
        ...


@dataclass(frozen=True)
class Composed:
    """One defence after the other, the first first: ``Composed((Clip(1.0), noise))``."""

    steps: tuple[Defense, ...]

    def __post_init__(self) -> None:
        wrong = [step for step in self.steps if isinstance(step, type) or not callable(step)]
        if wrong:
            raise DefenseError(f"expected defences such as Clip(1.0), got {wrong[0]!r}")

    def __call__(self, share: GradientShare) -> GradientShare:
        for step in self.steps:
            share = step(share)
        return share


def positive(size: float, what: str) -> None:
    """Raise unless ``size`` is a positive finite number."""
    if not isinstance(size, int | float) or not 0 < size < math.inf:
        raise DefenseError(f"expected {what} as a positive number, got {size!r}")
