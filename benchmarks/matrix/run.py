"""Audit every network with every kind of update."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.adversary.stranger import Stranger
from benchmarks.matrix.client import Client
from benchmarks.matrix.judge import falsely_green, wrong_claims, wrong_unique
from benchmarks.matrix.updates import Kind, Sent
from softleak.audit import AuditReport, Leak, NamedShare, State, audit_shares, prepared
from softleak.core.subject import Subject
from softleak.present.words import headline


@dataclass(frozen=True)
class Cell:
    """What the audit said of one update of one network, and how that compares with the truth.

    Attributes:
        network: the name of the network.
        kind: the name of the kind of update.
        verdict: the verdict on the label.
        states: the state of each kind of leak, in the order of ``Leak``.
        wrong_unique: whether a label was called unique and is wrong.
        wrong: the other claims that are wrong.
        green: the leaks that are shown as attacked without success although that is not so.
        said: the headline of the report.
        seconds: the processor time of the audit.
    """

    network: str
    kind: str
    verdict: str
    states: tuple[State, ...]
    wrong_unique: bool
    wrong: tuple[str, ...]
    green: tuple[str, ...]
    said: str
    seconds: float

    @property
    def faults(self) -> tuple[str, ...]:
        """Everything that is wrong with the report, in words."""
        unique = ("UNIQUE",) if self.wrong_unique else ()
        return (
            *(f"wrong {claim}" for claim in (*unique, *self.wrong)),
            *(f"green {kind}" for kind in self.green),
        )


def cells(network: Stranger, kinds: Sequence[Kind], row: int = 0) -> Iterator[Cell]:
    """Yield one row of the matrix; the numbers of row and column decide which data are drawn."""
    client = Client(network)
    subject = Subject.of(client.model, network.shape)
    for column, kind in enumerate(kinds):
        sent = kind.make(client, row + column)
        start = time.process_time()
        report = audited(subject, sent)
        seconds = time.process_time() - start
        yield Cell(
            network.name, kind.name, report.label.proved,
            tuple(report.states[leak] for leak in Leak), wrong_unique(report, sent),
            wrong_claims(subject, report, sent), falsely_green(subject, report, sent),
            headline(report), seconds,
        )  # fmt: skip


def audited(subject: Subject, sent: Sent) -> AuditReport:
    """Return the report of one update; the audit is not given the truth."""
    share = prepared(subject, sent.share, sent.options)
    return next(audit_shares(subject, [NamedShare("update", share)], sent.options))
