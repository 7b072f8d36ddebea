"""The table of leaks: one row for each kind of thing that an update can give away.

Verdicts, pages, JSON, exit codes and dossiers read this table. A new kind of leak is a new row:
``register(Leak(...))``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from softleak.core.errors import OptionError
from softleak.core.vocabulary import State

if TYPE_CHECKING:
    from softleak.audit.report import AuditReport, SamplesFinding


class Severity(Enum):
    """How bad a finding is, from the worst to the best that an audit can say."""

    CRITICAL = "critical"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    NOT_KNOWN = "not known"
    NONE_FOUND = "none found"

    @property
    def rank(self) -> int:
        """Return a number that is higher for a worse severity."""
        return -list(Severity).index(self)

    @property
    def slug(self) -> str:
        """Return the name as a page's classes write it."""
        return self.name.lower().replace("_", "-")

    @property
    def meaning(self) -> str:
        """Return in a phrase what was recovered."""
        return _MEANING[self]


_MEANING = {
    Severity.CRITICAL: "an input, or a part of one, was recovered",
    Severity.HIGH: "the label, or the feature before the last layer, was recovered",
    Severity.MEDIUM: "classes were recovered",
    Severity.LOW: "the label was narrowed down to a set",
    Severity.NOT_KNOWN: "nothing was recovered, but not everything was attacked",
    Severity.NONE_FOUND: "no attack of this audit succeeded; another may",
}


class _Table(type):
    """Let ``for leak in Leak`` and ``len(Leak)`` see the rows of the table."""

    def __iter__(cls) -> Iterator[Leak]:
        return iter(_ROWS.values())

    def __len__(cls) -> int:
        return len(_ROWS)


@dataclass(frozen=True, eq=False, repr=False)
class Leak(metaclass=_Table):
    """One kind of leak.

    Attributes:
        value: what options and files call it.
        short: what people call it.
        its: what an update gives away, in a verdict on one update.
        their: the same in a verdict on several.
        counts_if: when it counts as leaked.
        severity: how bad it is.
        state: reads from a report whether it leaked, and whether it was attacked.
        defended: whether defences are tried against it.
        of_samples: counts the samples of an update of several that it leaked from; None if it is
            not told apart for them.
        each: what such a sample gives away, with ``{}`` in the place of its short name.
    """

    value: str
    short: str
    its: str
    their: str
    counts_if: str
    severity: Severity
    state: Callable[[AuditReport], State]
    defended: bool = False
    of_samples: Callable[[SamplesFinding], int] | None = None
    each: str = "the {}"

    LABEL: ClassVar[Leak]
    CLASS: ClassVar[Leak]
    FEATURE: ClassVar[Leak]
    INPUT: ClassVar[Leak]
    COMPOSITION: ClassVar[Leak]

    @staticmethod
    def named(value: str) -> Leak:
        """Return the row of this name, or raise ``OptionError`` with the names there are."""
        if value not in _ROWS:
            raise OptionError(f"expected one of {', '.join(_ROWS)}, got {value!r}")
        return _ROWS[value]

    def __repr__(self) -> str:
        return f"Leak({self.value!r})"

    def __reduce__(self) -> tuple[Callable[[str], Leak], tuple[str]]:
        return Leak.named, (self.value,)


_ROWS: dict[str, Leak] = {}


def register(leak: Leak) -> Leak:
    """Add a row to the table, or replace the row of the same name."""
    _ROWS[leak.value] = leak
    return leak


def _tried(report: AuditReport) -> bool:
    """Return whether the labels of its samples were attacked."""
    return report.alone or report.samples.attacked


def _knows_feature(report: AuditReport) -> bool:
    return report.feature.proved or report.samples.features > 0


def _knows_composition(report: AuditReport) -> bool:
    """Return whether a class is proved to be among the labels, be it by the only label."""
    return report.knows_label or report.knows_class or bool(report.composition.raised)


Leak.LABEL = register(Leak(
    "label", "label", "its exact label", "their exact label",
    "recovered exactly, nearly, or as another reading of the same numbers",
    Severity.HIGH, lambda report: State.of(report.knows_label, _tried(report)),
    defended=True, of_samples=lambda found: len(found.proved), each="the exact {}",
))  # fmt: skip
Leak.CLASS = register(Leak(
    "class", "class", "its class", "their class",
    "every label that fits has the same class on top, or one class alone is proved",
    Severity.MEDIUM, lambda report: State.of(report.knows_class, _tried(report)), defended=True,
))  # fmt: skip
Leak.FEATURE = register(Leak(
    "feature", "feature", "the feature before the last layer", "the feature before the last layer",
    "the input of the last layer, as the model saw it",
    Severity.HIGH, lambda report: State.of(_knows_feature(report), _tried(report)),
    of_samples=lambda found: found.features, each="the {} before the last layer",
))  # fmt: skip
Leak.INPUT = register(Leak(
    "input", "input", "the input itself", "the input itself",
    "an image, computed or matched, of 20 dB or better, or words of a text",
    Severity.CRITICAL,
    lambda report: State.of(report.shows_input or report.samples.inputs > 0, report.input.attacked),
    defended=True, of_samples=lambda found: found.inputs,
))  # fmt: skip
Leak.COMPOSITION = register(Leak(
    "composition", "class composition", "which classes are in it", "which classes are in them",
    "classes proved to be among the labels",
    Severity.MEDIUM,
    lambda report: State.of(_knows_composition(report), report.composition.attacked),
))  # fmt: skip
