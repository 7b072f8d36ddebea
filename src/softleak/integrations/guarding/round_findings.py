"""What was found in a round: what each client's update gives away, or why it was not audited."""

from __future__ import annotations

from dataclasses import dataclass

from softleak.auditing.headline import headline
from softleak.auditing.rates import Leak, State
from softleak.auditing.reports import AuditReport
from softleak.auditing.verdict_text import composition_words


@dataclass(frozen=True, eq=False)
class ClientAudit:
    """What was found in one client's update.

    Attributes:
        node: the number of the client's node.
        report: the report of the audit; None if the update was not audited.
        reason: why there is no report.
    """

    node: int
    report: AuditReport | None = None
    reason: str = ""

    @property
    def leaks(self) -> frozenset[Leak]:
        """The leaks that were proved."""
        return frozenset() if self.report is None else self.report.leaks

    @property
    def unattacked(self) -> frozenset[Leak]:
        """The leaks that were not attacked, so that nothing is known of them."""
        return frozenset(Leak) if self.report is None else self.report.unattacked

    @property
    def single(self) -> bool:
        """Whether nothing shows that the update comes from several samples or steps."""
        return self.report is not None and not self.report.several

    @property
    def words(self) -> str:
        """Return the verdict on the update in one line."""
        if self.report is None:
            return f"not audited: {self.reason}"
        if not self.report.several:
            return headline(self.report)
        said = composition_words(self.report, ())
        unclaimed = "" if self.report.samples.proved else ", so no label is claimed"
        return (
            f"The update holds more than one sample or local step{unclaimed}. "
            f"{headline(self.report)} Class composition: {said}."
        )


@dataclass(frozen=True, eq=False)
class RoundAudit:
    """What was found in the updates of a round.

    Attributes:
        number: the number of the round.
        clients: what was found in each client's update.
        seconds: the time that the audit took.
    """

    number: int
    clients: tuple[ClientAudit, ...]
    seconds: float

    @property
    def audited(self) -> tuple[ClientAudit, ...]:
        """The clients whose update could be read."""
        return tuple(client for client in self.clients if client.report is not None)

    def with_later(self, later: RoundAudit) -> RoundAudit:
        """Return the round with the later findings about some of its clients."""
        again = {client.node: client for client in later.clients}
        clients = tuple(again.get(client.node, client) for client in self.clients)
        return RoundAudit(self.number, clients, self.seconds + later.seconds)

    def count(self, leak: Leak, state: State = State.LEAKED) -> int:
        """Return the number of updates in which a kind of leak is in this state."""
        return sum(c.report.states[leak] is state for c in self.audited if c.report is not None)

    def attacked(self, leak: Leak) -> int:
        """Return the number of updates on which a kind of leak was attacked."""
        return len(self.audited) - self.count(leak, State.NOT_ATTACKED)

    def metrics(self) -> dict[str, float]:
        """Return the round in numbers, for Flower's metrics.

        A leak is given as a fraction of the updates on which it was attacked. If it was attacked on
        none, that number is missing, and only the number of updates not attacked is there.
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
