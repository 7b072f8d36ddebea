"""How often attacks succeed: rates with intervals, by kind of leak, setting and defence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

Z = 1.96  # of a 95 % interval


class Leak(Enum):
    """What a pipeline can be told to fail on."""

    LABEL = "label"
    CLASS = "class"
    FEATURE = "feature"
    INPUT = "input"


@dataclass(frozen=True)
class Rate:
    """How often an attack succeeded."""

    hits: int
    trials: int

    @property
    def value(self) -> float:
        """The part of trials."""
        return self.hits / self.trials

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval of 95 %."""
        n, p = self.trials, self.value
        middle = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
        half = Z / (1 + Z * Z / n) * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
        return max(middle - half, 0.0), min(middle + half, 1.0)


@dataclass(frozen=True)
class Point:
    """One setting of a defence; an attack that was not tried there is missing."""

    setting: float
    rates: Mapping[Leak, Rate]


@dataclass(frozen=True)
class Response:
    """How leakage answers to one defence.

    ``stops`` holds the weakest setting tried at which an attack succeeded in no trial.
    """

    name: str
    unit: str
    points: tuple[Point, ...]
    stops: Mapping[Leak, float]


@dataclass(frozen=True)
class WhatIf:
    """Every defence tried on some shares with some seeds."""

    responses: tuple[Response, ...]
    shares: int
    seeds: int
