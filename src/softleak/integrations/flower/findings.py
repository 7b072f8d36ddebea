"""What is found out in a round: what each client's update gave away, or why nobody can say."""

from __future__ import annotations

from dataclasses import dataclass

from softleak.audit.rates import Leak
from softleak.audit.reports import AuditReport
from softleak.audit.verdict import headline
from softleak.labels.batch import Batch
from softleak.results import Status


@dataclass(frozen=True, eq=False)
class ClientAudit:
    """One client's update: a report, or the ``reason`` why there is none.

    ``batch`` is what can still be said of more than one sample or local step.
    """

    node: int
    report: AuditReport | None = None
    batch: Batch | None = None
    reason: str = ""

    @property
    def leaks(self) -> frozenset[Leak]:
        """What was proved to leak."""
        return frozenset() if self.report is None else self.report.leaks

    @property
    def single(self) -> bool:
        """Whether the update is that of one sample and one step, for all one can tell."""
        if self.report is None:
            return False
        return self.report.label.recovery.status is not Status.NOT_SINGLE

    @property
    def words(self) -> str:
        """The verdict in a line."""
        if self.report is None:
            return f"not audited: {self.reason}"
        if self.batch is not None:
            return f"more than one sample or local step: {self.batch.message}; no label is claimed"
        return headline(self.report)


@dataclass(frozen=True, eq=False)
class RoundAudit:
    """All clients of a round, and the seconds the audit took."""

    number: int
    clients: tuple[ClientAudit, ...]
    seconds: float

    @property
    def audited(self) -> tuple[ClientAudit, ...]:
        """Those whose update could be read."""
        return tuple(client for client in self.clients if client.report is not None)

    def with_later(self, later: RoundAudit) -> RoundAudit:
        """The round with some of its clients looked at again."""
        again = {client.node: client for client in later.clients}
        clients = tuple(again.get(client.node, client) for client in self.clients)
        return RoundAudit(self.number, clients, self.seconds + later.seconds)

    def count(self, leak: Leak) -> int:
        """How many updates were proved to give this away."""
        return sum(leak in client.leaks for client in self.clients)

    def metrics(self) -> dict[str, float]:
        """The round in numbers, for Flower's metrics: parts of the updates that were audited."""
        total = max(len(self.audited), 1)
        leaked = {f"softleak-{leak.value}": self.count(leak) / total for leak in Leak}
        return {
            **leaked,
            "softleak-audited": float(len(self.audited)),
            "softleak-refused": float(len(self.clients) - len(self.audited)),
            "softleak-several": float(sum(not client.single for client in self.audited)),
            "softleak-seconds": self.seconds,
        }
