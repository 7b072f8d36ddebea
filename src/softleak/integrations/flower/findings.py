"""What is found out in a round: what each client's update gave away, or why nobody can say."""

from __future__ import annotations

from dataclasses import dataclass

from softleak.audit.rates import Leak, State
from softleak.audit.reports import AuditReport
from softleak.audit.verdict import headline
from softleak.audit.words import composition_words


@dataclass(frozen=True, eq=False)
class ClientAudit:
    """One client's update: a report, or the ``reason`` why there is none."""

    node: int
    report: AuditReport | None = None
    reason: str = ""

    @property
    def leaks(self) -> frozenset[Leak]:
        """What was proved to leak."""
        return frozenset() if self.report is None else self.report.leaks

    @property
    def unattacked(self) -> frozenset[Leak]:
        """What was not attacked, so that nobody knows."""
        return frozenset(Leak) if self.report is None else self.report.unattacked

    @property
    def single(self) -> bool:
        """Whether the update is that of one sample and one step, for all one can tell."""
        return self.report is not None and not self.report.several

    @property
    def words(self) -> str:
        """The verdict in a line."""
        if self.report is None:
            return f"not audited: {self.reason}"
        if not self.report.several:
            return headline(self.report)
        said = composition_words(self.report, ())
        return (
            "more than one sample or local step, so that no label is claimed. "
            f"{headline(self.report)} Class composition: {said}."
        )


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

    def count(self, leak: Leak, state: State = State.LEAKED) -> int:
        """How many updates were proved to give this away, or are in another state."""
        return sum(c.report.states[leak] is state for c in self.audited if c.report is not None)

    def attacked(self, leak: Leak) -> int:
        """On how many updates this was attacked."""
        return len(self.audited) - self.count(leak, State.NOT_ATTACKED)

    def metrics(self) -> dict[str, float]:
        """The round in numbers, for Flower's metrics.

        Leaks are parts of the updates on which they were attacked. Where none was, there is no such
        number: the count of those not attacked stands alone.
        """
        tried = {leak: self.attacked(leak) for leak in Leak}
        return {
            **{f"softleak-{k.value}": self.count(k) / n for k, n in tried.items() if n},
            **{
                f"softleak-{k.value}-not-attacked": float(len(self.audited) - n)
                for k, n in tried.items()
            },
            "softleak-audited": float(len(self.audited)),
            "softleak-refused": float(len(self.clients) - len(self.audited)),
            "softleak-several": float(sum(not client.single for client in self.audited)),
            "softleak-seconds": self.seconds,
        }
