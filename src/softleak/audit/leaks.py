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
    """How bad a finding is, from the worst to the best that an audit can say; and what it means."""

    CRITICAL = "critical", "an input, or a part of one, was recovered"
    HIGH = "high", "the label, or the feature before the last layer, was recovered"
    MEDIUM = "medium", "classes were recovered"
    LOW = "low", "the label was narrowed down to a set"
    NOT_KNOWN = "not known", "nothing was recovered, but not everything was attacked"
    NONE_FOUND = "none found", "no attack of this audit succeeded; another may"

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Severity:
        made = object.__new__(cls)
        made._value_, made.meaning = value, meaning
        return made

    @property
    def rank(self) -> int:
        """Return a number that is higher for a worse severity."""
        return -list(Severity).index(self)

    @property
    def slug(self) -> str:
        """Return the name as a page's classes write it."""
        return self.name.lower().replace("_", "-")


class _Table(type):
    """Let ``for leak in Leak`` and ``len(Leak)`` see the rows of the table."""

    def __iter__(cls) -> Iterator[Leak]:
        return iter(_ROWS.values())

    def __len__(cls) -> int:
        return len(_ROWS)


@dataclass(frozen=True, eq=False, repr=False)
class Leak(metaclass=_Table):
    """One kind of leak."""

    value: str  # what options and files call it
    short: str  # what people call it
    its: str  # what an update gives away, in a verdict on one update
    their: str  # the same in a verdict on several
    counts_if: str  # when it counts as leaked
    severity: Severity  # how bad it is
    state: Callable[[AuditReport], State]  # reads whether it leaked, and whether it was attacked
    defended: bool = False  # whether defences are tried against it
    # Counts the samples of an update of several that it leaked from; None: not told apart for them.
    of_samples: Callable[[SamplesFinding], int] | None = None
    each: str = "the {}"  # what such a sample gives away, with ``{}`` for its short name

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
    Severity.HIGH, lambda report: State.of(
        report.feature.proved or report.samples.features > 0, _tried(report)
    ),
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
    lambda report: State.of(  # the only label names a class as well, unless it is of numbers
        (report.knows_label and not report.label.recovery.targets)
        or report.knows_class or bool(report.composition.raised),
        report.composition.attacked,
    ),
))  # fmt: skip
