"""What an audit answers: a report of each share, in three states, and how to do it again."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike

from softleak.audit.composition import CompositionFinding, mixes
from softleak.audit.findings import (
    FeatureFinding,
    InputFinding,
    LabelFinding,
    LabelLeak,
    Method,
    Score,
)
from softleak.audit.rates import Leak, State, WhatIf
from softleak.audit.scalar import ScalarView

UNREAD = CompositionFinding()


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
    composition: CompositionFinding = UNREAD
    notes: tuple[str, ...] = ()  # what the share looks like, where that explains the verdict

    @property
    def several(self) -> bool:
        """Whether more than one sample or step is behind it, so that no single label is sought."""
        return mixes(self.label.recovery, self.composition)

    @property
    def alone(self) -> bool:
        """Whether it was attacked as the gradient of one sample; a pattern of signs is none."""
        return not self.several and not self.composition.signs

    @property
    def why(self) -> str:
        """Why the label is what it is: what the share looks like, else what the recovery says."""
        return "; ".join(self.notes) or self.label.recovery.message

    @property
    def states(self) -> dict[Leak, State]:
        """Of each kind of leak whether it was found, sought in vain, or not sought at all."""
        known, alone, finding = self.label.known, self.alone, self.label
        # A label of two equal halves is known and has no class; one of two readings has one.
        named = finding.class_index is not None or bool(finding.recovery.readings)
        return {
            Leak.LABEL: State.of(known, alone),
            Leak.CLASS: State.of(named, alone),
            Leak.FEATURE: State.of(self.feature.proved, alone),
            Leak.INPUT: State.of(self.shows_input, self.input.method is not Method.NONE),
            Leak.COMPOSITION: State.of(
                known or named or bool(self.composition.present), self.composition.attacked
            ),
        }

    @property
    def shows_input(self) -> bool:
        """Whether a recognisable input was recovered: by the truth if it is known, else as told.

        What was computed exactly and predicted to be good counts whatever the truth says. Without a
        truth, what is predicted to be nearly good counts too.
        """
        told = None if self.score is None else self.score.recognisable
        if told is None or (self.input.method is Method.INVERSION and self.input.leaked):
            return self.input.leaked or self.input.doubtful
        return told

    @property
    def leaks(self) -> frozenset[Leak]:
        """What was found to leak."""
        return frozenset(k for k, state in self.states.items() if state is State.LEAKED)

    @property
    def unattacked(self) -> frozenset[Leak]:
        """What nobody knows, because it was not attacked or could not be."""
        return frozenset(k for k, state in self.states.items() if state is State.NOT_ATTACKED)

    @property
    def telling(self) -> bool:
        """Whether it gave anything away that defences are tried on, a set of labels included."""
        return bool(self.leaks - {Leak.COMPOSITION}) or self.label.leak is not LabelLeak.NOTHING

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
    remarks: tuple[str, ...] = ()  # how files were read
    cautions: tuple[str, ...] = ()  # sentences that belong to the verdict, as on random weights

    def count(self, leak: Leak, state: State = State.LEAKED) -> int:
        """Of how many shares this leaked, or is in another state."""
        return sum(report.states[leak] is state for report in self.reports)
