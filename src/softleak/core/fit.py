"""Whether an update bears out what every attack assumes of it.

An attack takes a loss, weights, a sign, a scale, one plain step, no noise and no compression for
granted. A ``Fit`` says of each whether the numbers bear it out, contradict it or leave it open.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum


class Topic(Enum):
    """What is assumed of an update."""

    LOSS = "loss"
    WEIGHTS = "weights"
    SIGN = "sign"
    SCALE = "scale"
    STEPS = "steps"
    NOISE = "noise"
    COMPRESSION = "compression"
    MODE = "mode"


class Bearing(Enum):
    """What the numbers say of an assumption."""

    HOLDS = "holds"
    CONTRADICTED = "contradicted"
    OPEN = "open"


class Explanation(Enum):
    """What explains the numbers where an assumption does not."""

    NONE = ""
    STATED = "stated"
    CE = "ce"
    NO_LABEL = "no label"
    BCE = "bce"
    MSE = "mse"
    MARGIN = "margin"
    TEMPERATURE = "temperature"
    ANY_TEMPERATURE = "any temperature"
    OTHER_LOSS = "another loss"
    OTHER_WEIGHTS = "other weights"
    SWAPPED = "swapped"
    OTHER_SCALE = "another scale"
    TENSOR_FACTORS = "factor per tensor"
    SEVERAL = "several samples"
    DECAY = "weight decay"
    OTHER_STEPS = "other steps"
    OTHER_CLIENT = "another client"
    ADAPTIVE = "adaptive steps"
    ABSENT = "absent"
    MEASURED = "measured"
    SIGNS = "signs"
    PRUNED = "pruned"
    GRID = "grid"
    DROPOUT = "dropout"
    FROZEN = "frozen"


@dataclass(frozen=True)
class Hypothesis:
    """What the numbers say of one assumption, with the number that decides."""

    topic: Topic
    bearing: Bearing
    explanation: Explanation = Explanation.NONE
    number: float | None = None

    @property
    def sentence(self) -> str:
        """Return the hypothesis in words."""
        from softleak.present.fit import fitting  # above this layer, where words are made

        return fitting(self)


@dataclass(frozen=True)
class Fit:
    """What the numbers of an update say of every assumption.

    Attributes:
        hypotheses: one for each topic, in the order of ``Topic``.
    """

    hypotheses: tuple[Hypothesis, ...]

    @classmethod
    def of(cls, found: Iterable[Hypothesis], otherwise: Bearing = Bearing.OPEN) -> Fit:
        """Return a fit with these hypotheses; topics without one stand as ``otherwise``."""
        by_topic = {one.topic: one for one in found}
        rest = (by_topic.get(topic, Hypothesis(topic, otherwise)) for topic in Topic)
        return cls(tuple(rest))

    def __getitem__(self, topic: Topic) -> Hypothesis:
        return next(one for one in self.hypotheses if one.topic is topic)

    @property
    def contradicted(self) -> tuple[Hypothesis, ...]:
        """Return what the numbers contradict."""
        return tuple(h for h in self.hypotheses if h.bearing is Bearing.CONTRADICTED)

    @property
    def holds(self) -> bool:
        """Return whether the numbers contradict nothing."""
        return not self.contradicted

    @property
    def explanations(self) -> frozenset[Explanation]:
        """Return what explains the update instead of what was assumed."""
        return frozenset(h.explanation for h in self.hypotheses) - {Explanation.NONE}

    def saying(self, *more: Hypothesis) -> Fit:
        """Return the fit with other words on some topics."""
        changed = {one.topic: one for one in more}
        return replace(self, hypotheses=tuple(changed.get(h.topic, h) for h in self.hypotheses))


NOT_FITTED = Fit.of(())
