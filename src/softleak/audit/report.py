"""The answer of an audit: a report per share, and how to run it again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from html import escape
from os import PathLike
from typing import Any

import torch

from softleak.audit.findings import (
    NO_SAMPLES,
    UNREAD,
    CompositionFinding,
    FeatureFinding,
    InputFinding,
    LabelFinding,
    SamplesFinding,
    mixes,
)
from softleak.audit.leaks import Leak
from softleak.audit.metrics import Score
from softleak.audit.options import NO_NAMES, TokenNames
from softleak.audit.sweeps import WhatIf
from softleak.core.factors import factor
from softleak.core.families import Family, SmoothedMixed
from softleak.core.fit import Fit, Topic
from softleak.core.head import Head
from softleak.core.knowledge import Knowledge
from softleak.core.loss import CrossEntropy
from softleak.core.results import Recovery, Status
from softleak.core.share import GradientShare
from softleak.core.vocabulary import State
from softleak.labels.curve import spread
from softleak.labels.pseudo import LARGEST, PseudoLabels

POINTS = 600  # an even number, so that zero is none of them
NEAR = 10.0 ** -torch.arange(1.0, 7.0, 0.5, dtype=torch.double)  # of t: closer and closer to a mark
REACH = LARGEST ** (1 / 3)
SHOWN: Family = SmoothedMixed(2)  # the loss drawn is the distance from these


def scalar_view(head: Head, share: GradientShare, recovery: Recovery) -> dict[str, Any] | None:
    """Return ``ŷ(t) = softmax(a/t + b) − t u`` with its loss, for the page of one share.

    Returns:
        ``a``, ``b``, ``u`` (C,). ``loss`` (S,) on cubes of evenly spaced numbers from −``reach`` to
        ``reach``, which show small and large scalars alike; ``near`` (K, 2) are scalars and losses
        around the certified solutions, where it falls to zero. None where no single sample is
        behind the share, or where it is not that of a softmax cross-entropy at these weights.
    """
    broken = {one.topic for one in recovery.fit.contradicted} - {Topic.NOISE, Topic.SCALE}
    if recovery.status in (Status.ZERO_GRADIENT, Status.NOT_SINGLE) or broken:
        return None
    if not isinstance(recovery.loss, CrossEntropy):
        return None
    unscaled = share if recovery.scale == 1.0 else share.scaled(1 / recovery.scale)
    pseudo = PseudoLabels.of(head, factor(head, [unscaled]))
    even = torch.arange(POINTS, dtype=torch.double).add(0.5).mul(2 * REACH / POINTS).sub(REACH)
    sides = torch.cat([1 - NEAR, torch.ones(1, dtype=torch.double), 1 + NEAR])
    around = [found.scalar * sides for found in recovery.solutions]
    close = [torch.cat(around).sort().values] if around else []
    t = torch.cat([even**3, *close]).to(head.W.device)
    loss = spread(pseudo, SHOWN, t[None])[0]
    near = torch.stack([t, loss], 1)[POINTS:]
    numbers = {"a": pseudo.a[0], "b": pseudo.b, "u": pseudo.u[0]}
    return {
        **{name: entries.tolist() for name, entries in numbers.items()},
        "reach": REACH,
        "loss": loss[:POINTS].tolist(),
        "near": near.tolist(),
    }


@dataclass(frozen=True, eq=False)
class AuditReport:
    """Of one share what it gave away, and how that was found out."""

    name: str
    label: LabelFinding
    feature: FeatureFinding
    input: InputFinding
    knowledge: Knowledge
    view: dict[str, Any] | None = None  # the loss over the searched scalar
    score: Score | None = None
    fingerprint: str = ""  # SHA-256 of the file it came from
    composition: CompositionFinding = UNREAD
    notes: tuple[str, ...] = ()  # what the share looks like, where that explains the verdict
    tokens: TokenNames = NO_NAMES  # the words behind the ids of a text
    samples: SamplesFinding = NO_SAMPLES  # of an update of several

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Return what the findings rest on, in sentences that follow from what was known."""
        said = self.knowledge.assumptions(self.label.recovery)
        single = (self.samples.assumed,) if self.samples.attacked else ()
        return (*said, *self.input.assumptions, *single)

    @property
    def several(self) -> bool:
        """Return whether several samples or steps are behind it, and so no single label."""
        return mixes(self.label.recovery, self.composition)

    @property
    def alone(self) -> bool:
        """Return whether it was attacked as the gradient of one sample, which signs are not."""
        return not self.several and not self.composition.signs

    @property
    def why(self) -> str:
        """Return why the label is what it is, by the notes on the share or by the recovery."""
        return "; ".join(self.notes) or self.label.recovery.message

    @cached_property
    def states(self) -> dict[Leak, State]:
        """Return for each kind of leak whether it was found, not found, or not attacked."""
        states = {leak: leak.state(self) for leak in Leak}
        if self.fit.holds:
            return states
        # An attack fails for nothing where what it rests on is not so.
        failed = State.NO_SUCCESS
        return {k: State.CONTRADICTED if s is failed else s for k, s in states.items()}

    @property
    def fit(self) -> Fit:
        """Return what the numbers of the update say of everything that is assumed of it."""
        return self.label.recovery.fit

    @property
    def refuted(self) -> bool:
        """Return whether no label and no class is named, as the update is not what was stated."""
        return self.states[Leak.LABEL] is State.CONTRADICTED and self.label.class_index is None

    @property
    def knows_label(self) -> bool:
        """Return whether a label is named: that of the only sample, or of one of several."""
        return self.label.known or bool(self.samples.proved) or self._counted

    @property
    def _counted(self) -> bool:
        """Return whether the number of samples of each class is known."""
        counts = self.composition.counts
        return counts is not None and bool(counts.low) and counts.low == counts.high

    @property
    def knows_class(self) -> bool:
        """Return whether a class is named.

        A label of two equal halves is known and has no class; one of two readings has one.
        """
        if self.label.class_index is not None or self.label.recovery.readings:
            return True
        one = len(self.composition.raised) == 1 == len(self.composition.present)
        alone = one and (not self.several or self._counted)
        if alone or not isinstance(self.label.recovery.loss, CrossEntropy):
            return alone or self.label.known
        return any(one.class_index is not None for one in self.samples.proved)

    @property
    def knows_feature(self) -> bool:
        """Return whether a feature is proved: that of the only sample, or of one of several."""
        return self.feature.proved or self.samples.features > 0

    @property
    def knows_composition(self) -> bool:
        """Return whether a class is proved to be among the labels, be it by the only label."""
        return self.knows_label or self.knows_class or bool(self.composition.raised)

    @property
    def shows_input(self) -> bool:
        """Return whether a recognisable input was recovered, by the truth if it is known.

        What was computed exactly and predicted to be good counts whatever the truth says. Without a
        truth, what is predicted to be nearly good counts too.
        """
        told = None if self.score is None else self.score.recognisable
        if told is None or (self.input.method.exact and self.input.leaked):
            return self.input.leaked or self.input.doubtful
        return told

    @cached_property
    def leaks(self) -> frozenset[Leak]:
        """Return what was found to leak."""
        return frozenset(k for k, state in self.states.items() if state is State.LEAKED)

    @cached_property
    def unattacked(self) -> frozenset[Leak]:
        """Return the kinds of leak that were not attacked, or could not be."""
        return frozenset(k for k, state in self.states.items() if not state.attacked)

    @property
    def telling(self) -> bool:
        """Return whether anything leaked that defences are tried on, a set of labels included."""
        return bool(self.leaks - {Leak.COMPOSITION}) or self.label.proved != "NOTHING"

    @property
    def seconds(self) -> float:
        """Return how long the attacks took."""
        return self.label.seconds + self.input.seconds + self.samples.seconds

    def __str__(self) -> str:
        """Return the verdict in a few lines."""
        from softleak.present.words import headline  # above this layer, where sentences are made

        states = ", ".join(f"{leak.value} {state.value}" for leak, state in self.states.items())
        return f"{self.name}: {headline(self)}\n{states}"

    def _repr_html_(self) -> str:
        """Return the same lines for a notebook."""
        return f"<pre>{escape(str(self))}</pre>"

    def to_html(self, path: str | PathLike[str], class_names: tuple[str, ...] = ()) -> None:
        """Write the page of this share alone, whole or not at all."""
        from softleak.present.page import write_page  # above this layer, where sentences are made

        write_page(path, Audit((self,), class_names=class_names))


@dataclass(frozen=True)
class Refusal:
    """A file that could not be audited, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Provenance:
    """What somebody needs to run the audit again, as names and values.

    Attributes:
        command: the command line.
        versions: the name and version of everything that computed.
        inputs: the name and SHA-256 of each file that was read.
        date: when the audit ran, in UTC as ISO 8601 writes it.
        hashes: the name and SHA-256 of what was computed with: weights, and code.
        auditor: who answers for the audit, as they say.
    """

    command: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    inputs: tuple[tuple[str, str], ...] = ()
    date: str = ""
    hashes: tuple[tuple[str, str], ...] = ()
    auditor: str = ""


@dataclass(frozen=True, eq=False)
class Audit:
    """A report of each share of a model, the files refused, and how to run it again."""

    reports: tuple[AuditReport, ...]
    refused: tuple[Refusal, ...] = ()
    class_names: tuple[str, ...] = ()
    model: str = ""
    evidence: tuple[str, ...] = ()
    provenance: Provenance = Provenance()
    what_if: WhatIf | None = None
    remarks: tuple[str, ...] = ()  # how files were read
    cautions: tuple[str, ...] = ()  # sentences that belong to the verdict, as on random weights

    def count(self, leak: Leak, *states: State) -> int:
        """Return the number of shares of which this kind of leak is in one of the states."""
        wanted = states or (State.LEAKED,)
        return sum(report.states[leak] in wanted for report in self.reports)

    def untried(self, leak: Leak) -> int:
        """Return the number of shares of which this kind of leak was not attacked."""
        return self.count(leak, State.NOT_ATTACKED, State.CONTRADICTED)
