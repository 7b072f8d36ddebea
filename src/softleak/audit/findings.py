"""What an audit answers: of each share, what was proved of its label, feature and input."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from os import PathLike

from torch import Tensor

from softleak.audit.pixels import PixelMap
from softleak.audit.rates import Leak, WhatIf
from softleak.audit.scalar import ScalarView
from softleak.inversion.step import LayerReport
from softleak.results import Recovery, Status

PRECISE = 1e-2  # a relative error of the feature below which it counts as known
RECOGNISABLE = 20.0  # dB: an image predicted to be this close shows what it is of


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
        if self.class_index is not None:
            return LabelLeak.CLASS
        one_of_these = self.recovery.status is Status.AMBIGUOUS and self.recovery.complete
        return LabelLeak.AMBIGUOUS if one_of_these else LabelLeak.NOTHING

    @property
    def class_index(self) -> int | None:
        """The class every label that fits has on top, or that noise leaves probable."""
        recovery = self.recovery
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
        proved = recovery.status is Status.UNIQUE or by_evidence
        error = recovery.feature_error
        return cls(recovery.feature.numel(), error, proved and error <= PRECISE)


class Method(Enum):
    """How an input was recovered."""

    NONE = "not attempted"
    INVERSION = "exact inversion, layer by layer"
    MATCHING = "gradient matching"


@dataclass(frozen=True, eq=False)
class InputFinding:
    """The input as pixels in [0, 1] (or as it is, if it is no image), and its predicted error."""

    method: Method
    message: str
    pixels: Tensor | None = None
    psnr_predicted: float | None = None
    determined: bool = False
    layers: tuple[LayerReport, ...] = ()
    to_pixels: PixelMap | None = None
    misfit: float | None = None  # of a matched gradient, relative to its size
    seconds: float = 0.0
    asked: bool = True  # whether anybody wanted it

    @property
    def leaked(self) -> bool:
        """Whether every layer determined its input, and the error predicted is small."""
        close = self.psnr_predicted is not None and self.psnr_predicted >= RECOGNISABLE
        return self.determined and close


@dataclass(frozen=True, eq=False)
class Score:
    """What the truth says of the answer, read after it was given."""

    label_true: Tensor | None = None
    label_error: float | None = None
    set_distance: float | None = None
    pixels_true: Tensor | None = None
    psnr: float | None = None


@dataclass(frozen=True, eq=False)
class AuditReport:
    """One share: what it gave away, and how that was found out."""

    name: str
    label: LabelFinding
    feature: FeatureFinding
    input: InputFinding
    assumptions: tuple[str, ...]
    view: ScalarView | None = None
    score: Score | None = None
    fingerprint: str = ""  # SHA-256 of the file it came from

    @property
    def leaks(self) -> frozenset[Leak]:
        """What was proved to leak."""
        said = {
            Leak.LABEL: self.label.leak is LabelLeak.UNIQUE,
            Leak.CLASS: self.label.class_index is not None,
            Leak.FEATURE: self.feature.proved,
            Leak.INPUT: self.input.leaked,
        }
        return frozenset(leak for leak, found in said.items() if found)

    @property
    def telling(self) -> bool:
        """Whether it gave anything away, a set of labels included."""
        return bool(self.leaks) or self.label.leak is not LabelLeak.NOTHING

    @property
    def unattacked(self) -> frozenset[Leak]:
        """What was asked for and there was a way to begin, but none to go on."""
        begun = self.label.recovery.feature is not None
        none = self.input.asked and self.input.method is Method.NONE
        return frozenset({Leak.INPUT}) if begun and none else frozenset()

    @property
    def seconds(self) -> float:
        """What the attacks took."""
        return self.label.seconds + self.input.seconds

    def to_html(self, path: str | PathLike[str], class_names: tuple[str, ...] = ()) -> None:
        """Write the page of this share alone, whole or not at all."""
        from softleak.report import write_page

        write_page(path, Audit((self,), class_names=class_names))


@dataclass(frozen=True)
class Refusal:
    """A file that could not be audited, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Provenance:
    """What somebody needs to run it again: names and values."""

    command: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    inputs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, eq=False)
class Audit:
    """Many shares of one model: a report each, the files refused, and how to do it again."""

    reports: tuple[AuditReport, ...]
    refused: tuple[Refusal, ...] = ()
    class_names: tuple[str, ...] = ()
    model: str = ""
    evidence: tuple[str, ...] = ()
    provenance: Provenance = Provenance()
    what_if: WhatIf | None = None

    def count(self, leak: Leak) -> int:
        """How many shares leaked this."""
        return sum(leak in report.leaks for report in self.reports)
