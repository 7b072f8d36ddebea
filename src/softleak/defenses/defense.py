"""This module says what a defence is: something done to gradients before they are sent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from softleak.errors import OptionError
from softleak.share import GradientShare


@runtime_checkable
class Defense(Protocol):
    """A defence takes a share and returns what is sent instead; the given one stays as it was."""

    def __call__(self, share: GradientShare) -> GradientShare:
        """Return what is sent instead of ``share``."""
        ...


@runtime_checkable
class OpenDefense(Defense, Protocol):
    """This is a defence that says what the receiver of the share may know of it.

    Attributes:
        random: whether two calls with different seeds send different shares.
    """

    random: ClassVar[bool]

    def public(self, sent: GradientShare) -> GradientShare:
        """Return what was sent, with all that the defence gives away about itself."""
        ...


def is_random(defense: Defense) -> bool:
    """Return whether a defence draws random numbers; one that does not say counts as if not."""
    return isinstance(defense, OpenDefense) and defense.random


def as_known(defense: Defense, sent: GradientShare) -> GradientShare:
    """Return what was sent as its receiver sees it, who knows the defence and its setting."""
    return defense.public(sent) if isinstance(defense, OpenDefense) else sent


@dataclass(frozen=True)
class Composed:
    """This applies one defence after the other: ``Composed((Clip(1.0), noise))``."""

    steps: tuple[Defense, ...]

    def __post_init__(self) -> None:
        wrong = [step for step in self.steps if isinstance(step, type) or not callable(step)]
        if wrong:
            raise OptionError(f"expected defences such as Clip(1.0), got {wrong[0]!r}")

    def __call__(self, share: GradientShare) -> GradientShare:
        for step in self.steps:
            share = step(share)
        return share

    @property
    def random(self) -> bool:
        """Return whether any of the steps is random."""
        return any(is_random(step) for step in self.steps)

    def public(self, sent: GradientShare) -> GradientShare:
        """Return what was sent, with all that each of the steps gives away."""
        for step in self.steps:
            sent = as_known(step, sent)
        return sent


def positive(size: float, what: str) -> None:
    """Raise ``OptionError`` unless ``size`` is a positive finite number."""
    if not isinstance(size, int | float) or not 0 < size < math.inf:
        raise OptionError(f"expected {what} as a positive number, got {size!r}")
