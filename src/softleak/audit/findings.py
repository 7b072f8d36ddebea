"""What an audit finds out of one share: its label, its feature, its input."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from torch import Tensor

from softleak.audit.pixels import PixelMap
from softleak.inversion.step import LayerReport
from softleak.results import Recovery, Status

PRECISE = 1e-2  # a relative error of the feature below which it counts as known
RECOGNISABLE = 20.0  # dB: an image this close to the truth shows what it is of
DOUBTFUL = 18.0  # dB: a prediction from here on may be too low by what is missing to 20 dB
UNEXPLAINED = -100.0  # dB: what an image is worth that does not explain the share
CLOSE = 0.1  # in L1: a label whose error is bounded by this is known, if not exactly
EXPLAINED = 0.2  # what a matched image may leave of the share, relative to its size, to count


class LabelLeak(Enum):
    """How much of the label was proved."""

    UNIQUE = "the label, exactly"
    AMBIGUOUS = "a set of labels"
    CLASS = "the class only"
    PROBABLE = "the class, probably"
    NOTHING = "nothing"


@dataclass(frozen=True, eq=False)
class LabelFinding:
    """The recovery, and how much of the label it proves."""

    recovery: Recovery
    seconds: float

    @property
    def leak(self) -> LabelLeak:
        """What was proved, without any truth."""
        if self.recovery.status is Status.UNIQUE:
            return LabelLeak.UNIQUE
        if self.recovery.status is Status.PROBABLE:
            return LabelLeak.PROBABLE
        if self.recovery.readings:
            return LabelLeak.AMBIGUOUS
        if self.class_index is not None:
            return LabelLeak.CLASS
        narrowed = self.recovery.status is Status.AMBIGUOUS and self.recovery.label is not None
        return LabelLeak.AMBIGUOUS if narrowed else LabelLeak.NOTHING

    @property
    def known(self) -> bool:
        """Whether the label is named: alone, to within ``CLOSE``, or as one of two readings."""
        recovery = self.recovery
        bounded = recovery.complete or recovery.status is Status.PROBABLE
        close = bounded and recovery.error <= CLOSE
        return recovery.status is Status.UNIQUE or close or bool(recovery.readings)

    @property
    def class_index(self) -> int | None:
        """The class every label that fits has on top, or that noise leaves probable."""
        recovery = self.recovery
        if recovery.readings:
            labels = [one.label for one in recovery.readings]
            labels += [one.label for one in recovery.solutions]
            tops = {int(label.argmax()) for label in labels}
            return tops.pop() if len(tops) == 1 else None
        return recovery.class_index if recovery.status is Status.PROBABLE else recovery.proved_class


@dataclass(frozen=True)
class FeatureFinding:
    """Whether the input of the last layer is known, and to which relative error."""

    entries: int
    error: float
    proved: bool

    @classmethod
    def of(cls, recovery: Recovery) -> FeatureFinding:
        """What a recovery says of the feature; with unknown scale it may be exact by itself."""
        if recovery.feature is None:
            return cls(0, float("inf"), False)
        pieces = recovery.evidence
        by_evidence = any(p.agrees for p in pieces) and not any(p.refutes for p in pieces)
        sure = recovery.status in (Status.UNIQUE, Status.PROBABLE)
        one = recovery.complete and len(recovery.solutions) == 1
        proved = sure or one or by_evidence
        error = recovery.feature_error
        return cls(recovery.feature.numel(), error, proved and error <= PRECISE)


class Method(Enum):
    """How an input was recovered."""

    NONE = "not attempted"
    INVERSION = "exact inversion, layer by layer"
    MATCHING = "gradient matching"


@dataclass(frozen=True, eq=False)
class InputFinding:
    """The input as pixels in [0, 1] (or as it is, if it is no image), and how good it must be.

    ``psnr_predicted`` is computed from the equations of an exact inversion. A matched image has
    none: it is judged by its ``misfit``, what remains of the gradient relative to its size, and by
    its ``agreement``, the PSNR in dB between two images found from independent starts.
    """

    method: Method
    message: str
    pixels: Tensor | None = None
    psnr_predicted: float | None = None
    determined: bool = False
    layers: tuple[LayerReport, ...] = ()
    to_pixels: PixelMap | None = None
    misfit: float | None = None
    agreement: float | None = None
    seconds: float = 0.0
    asked: bool = True  # whether anybody wanted it

    @property
    def leaked(self) -> bool:
        """Whether the image can be taken for recognisable, without any truth.

        By inversion: every layer determined its input, and the predicted PSNR is 20 dB or more.
        By matching: the image explains the share, and another start led to the same one.
        """
        if self.method is Method.MATCHING:
            return _at_least(self.agreement, RECOGNISABLE) and (self.misfit or 0.0) <= EXPLAINED
        return self.determined and _at_least(self.psnr_predicted, RECOGNISABLE)

    @property
    def doubtful(self) -> bool:
        """Whether a computed image may be recognisable although its prediction stays below 20 dB.

        A prediction has an error of its own, of 2 dB or so: near the line is not safe.
        """
        near = self.method is Method.INVERSION and _at_least(self.psnr_predicted, DOUBTFUL)
        return near and not self.leaked

    @property
    def quality(self) -> float:
        """How good the image should be, in dB and without any truth, to order several attempts.

        By inversion it is what the equations predict, by matching how well two starts agree.
        """
        told = self.agreement if self.method is Method.MATCHING else self.psnr_predicted
        if self.pixels is None or told is None or math.isnan(told):
            return -math.inf
        return told if (self.misfit or 0.0) <= EXPLAINED else min(told, UNEXPLAINED)


def _at_least(value: float | None, line: float) -> bool:
    return value is not None and value >= line


@dataclass(frozen=True, eq=False)
class Score:
    """What the truth says of the answer, read after it was given."""

    label_true: Tensor | None = None
    label_error: float | None = None
    set_distance: float | None = None
    pixels_true: Tensor | None = None
    psnr: float | None = None

    @property
    def recognisable(self) -> bool | None:
        """Whether the image shows what the true one is of; None if there is nothing to compare."""
        return None if self.psnr is None else self.psnr >= RECOGNISABLE
