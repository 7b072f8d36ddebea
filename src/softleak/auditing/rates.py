"""This module holds how often attacks succeed: rates with intervals, by setting of a defence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from softleak.auditing.utility import Utility
from softleak.vocabulary import Leak, State

__all__ = ["Leak", "Point", "Rate", "Response", "State", "WhatIf"]

WILSON_Z = 1.96  # of a 95 % interval


@dataclass(frozen=True)
class Rate:
    """This holds how often an attack succeeded."""

    hits: int
    trials: int

    @property
    def value(self) -> float:
        """Return the part of the trials that succeeded."""
        return self.hits / self.trials

    @property
    def interval(self) -> tuple[float, float]:
        """Return Wilson's interval of 95 %."""
        n, p = self.trials, self.value
        middle = (p + WILSON_Z * WILSON_Z / (2 * n)) / (1 + WILSON_Z * WILSON_Z / n)
        half = (
            WILSON_Z
            / (1 + WILSON_Z * WILSON_Z / n)
            * math.sqrt(p * (1 - p) / n + WILSON_Z * WILSON_Z / (4 * n * n))
        )
        return max(middle - half, 0.0), min(middle + half, 1.0)


@dataclass(frozen=True)
class Point:
    """This holds the rates at one setting of a defence, and what it leaves of the update.

    What was not tried is missing. ``unclaimed`` is the number of trials in which the best label is
    right, although no attack claims it.
    """

    setting: float
    rates: Mapping[Leak, Rate]
    utility: Utility | None = None
    unclaimed: int = 0


@dataclass(frozen=True)
class Response:
    """This holds how leakage answers to one defence.

    ``stops`` holds the weakest setting tried at which an attack succeeded in no trial, and ``left``
    what is left of the update there. ``unclaimed`` is the number of trials in which the best label
    is right although no attack claims it: the most at any setting from where claims end, or that at
    the strongest setting if they do not.
    """

    name: str
    unit: str
    points: tuple[Point, ...]
    stops: Mapping[Leak, float]
    left: Mapping[Leak, Utility] = field(default_factory=dict)
    unclaimed: int = 0


@dataclass(frozen=True)
class WhatIf:
    """This holds every defence that was tried on some shares with some seeds."""

    responses: tuple[Response, ...]
    shares: int
    seeds: int
