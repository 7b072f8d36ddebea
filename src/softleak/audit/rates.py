"""Kinds of leak, their three states, and how often attacks succeed: rates with intervals."""

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
    COMPOSITION = "composition"


class State(Enum):
    """What is known of one kind of leak. Only an attack that was carried out can fail."""

    LEAKED = "leaked"
    NO_SUCCESS = "attacked without success"
    NOT_ATTACKED = "not attacked"

    @classmethod
    def of(cls, found: bool, attacked: bool) -> State:
        """The state of what was found or not, attacked or not."""
        if found:
            return cls.LEAKED
        return cls.NO_SUCCESS if attacked else cls.NOT_ATTACKED


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
