"""Every network with every kind of update, through the audit."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.adversary.stranger import Stranger
from benchmarks.matrix.client import Client
from benchmarks.matrix.judge import falsely_green, wrong_claims, wrong_unique
from benchmarks.matrix.updates import Kind, Sent
from softleak.audit import AuditReport, Leak, NamedShare, State, Subject, audit_shares, prepared
from softleak.audit.verdict import headline


@dataclass(frozen=True)
class Cell:
    """What the audit said of one update of one network, and how that compares with the truth."""

    network: str
    kind: str
    verdict: str
    states: tuple[State, ...]  # in the order of Leak
    wrong_unique: bool
    wrong: tuple[str, ...]
    green: tuple[str, ...]
    said: str
    seconds: float

    @property
    def faults(self) -> tuple[str, ...]:
        """Everything that is wrong with it, in words."""
        unique = ("UNIQUE",) if self.wrong_unique else ()
        return (
            *(f"wrong {claim}" for claim in (*unique, *self.wrong)),
            *(f"green {kind}" for kind in self.green),
        )


def cells(network: Stranger, kinds: Sequence[Kind], row: int = 0) -> Iterator[Cell]:
    """One row of the matrix; its number and the column decide which data are drawn."""
    client = Client(network)
    subject = Subject.of(client.model, network.shape)
    for column, kind in enumerate(kinds):
        sent = kind.make(client, row + column)
        start = time.process_time()
        report = audited(subject, sent)
        seconds = time.process_time() - start
        yield Cell(
            network.name, kind.name, report.label.leak.name,
            tuple(report.states[leak] for leak in Leak), wrong_unique(report, sent),
            wrong_claims(subject, report, sent), falsely_green(subject, report, sent),
            headline(report), seconds,
        )  # fmt: skip


def audited(subject: Subject, sent: Sent) -> AuditReport:
    """The report of one update; the truth is not given to the audit."""
    share = prepared(subject, sent.share, sent.options)
    return next(audit_shares(subject, [NamedShare("update", share)], sent.options))
