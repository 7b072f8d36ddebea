"""The server's monitor: it wraps a strategy of Flower, and audits what every reply gives away."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from enum import Enum
from os import PathLike
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import nn

from softleak.integrations.flower import log
from softleak.integrations.flower.audit_engine import AuditEngine, runner
from softleak.integrations.flower.node_messages import (
    SentState,
    grouped,
    sent_states,
    update_of,
    with_metrics,
)
from softleak.integrations.flower.round_page import write_rounds
from softleak.integrations.guarding.auditor import Auditor, Question
from softleak.integrations.guarding.client_update import Update
from softleak.integrations.guarding.round_findings import RoundAudit

LOGGER = logging.getLogger("softleak")
LOG_FILE, PAGE_FILE = "audit.jsonl", "index.html"


class Unfit(Enum):
    """What becomes of a reply that cannot be a step of this model, such as one of NaN."""

    PASS_ON = "they go to the strategy like all others, which may fail on them"
    LEAVE_OUT = "the strategy does not see them"


class LeakageMonitor(Strategy):
    """A strategy that audits every reply of a training round, and leaves the rest to another.

    It changes nothing about the training unless ``unfit`` says so. An error in an audit is logged
    and never ends a round.

    Args:
        strategy: the strategy that configures and aggregates.
        model: the architecture of the federation; the weights are those of each round.
        lr: the clients' learning rate. By default it is the ``lr`` of the round's config; without
            that it is unknown.
        question: what is asked of every round.
        folder: the folder of the log and the page; None writes neither.
        class_names: the names of the classes on the page.
        unfit: what becomes of replies that cannot be a step of this model.
        engine: where the audits run.

    Attributes:
        strategy: the wrapped strategy.
        seconds: the time spent in the monitor, by round.
    """

    def __init__(
        self,
        strategy: Strategy,
        model: nn.Module,
        *,
        lr: float | None = None,
        question: Question | None = None,
        folder: str | PathLike[str] | None = None,
        class_names: Sequence[str] = (),
        unfit: Unfit = Unfit.PASS_ON,
        engine: AuditEngine = AuditEngine.INLINE,
    ) -> None:
        self.strategy = strategy
        self.seconds: dict[int, float] = {}
        self._lr, self._unfit = lr, unfit
        asked = question or Question()
        self._client = asked.client
        self._runner = runner(engine, Auditor(model, asked))
        self._folder = None if folder is None else Path(folder)
        self._class_names = tuple(class_names)
        self._sent: dict[int, SentState] = {}
        self._rounds: dict[int, RoundAudit] = {}

    @property
    def rounds(self) -> list[RoundAudit]:
        """The rounds that were audited so far, in their order."""
        return [self._rounds[number] for number in sorted(self._rounds)]

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the strategy's messages, after remembering what each node is sent."""
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        start = time.perf_counter()
        self._sent = sent_states(messages, self._lr, self._client)
        self.seconds[server_round] = time.perf_counter() - start
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Audit the replies, and return what the strategy makes of them, with our metrics."""
        replies = list(replies)
        start = time.perf_counter()
        updates = {r.metadata.src_node_id: update_of(r, self._sent) for r in replies}
        self._submit(server_round, updates)
        done = self._collect(wait=False)
        self.seconds[server_round] += time.perf_counter() - start
        if self._unfit is Unfit.LEAVE_OUT:
            fit = {node for node, update in updates.items() if update.share is not None}
            replies = [r for r in replies if r.has_error() or r.metadata.src_node_id in fit]
        aggregated, metrics = self.strategy.aggregate_train(server_round, replies)
        return aggregated, with_metrics(metrics, done[-1].metrics() if done else {})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the strategy's messages."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return what the strategy makes of the replies."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Log which strategy is wrapped, and its own summary."""
        LOGGER.info("LeakageMonitor around %s", type(self.strategy).__name__)
        self.strategy.summary()

    def finish(self) -> list[RoundAudit]:
        """Wait for all audits, attack the inputs left for later, and return all rounds."""
        self._collect(wait=True)
        return self.rounds

    def _submit(self, number: int, updates: dict[int, Update]) -> None:
        """Hand the updates of a round over to whoever runs the audits."""
        try:
            self._runner.submit(number, grouped(self._sent, updates))
        except Exception:  # a round must not end because of its audit, whatever is wrong
            LOGGER.exception("round %d could not be audited; the training goes on", number)

    def _collect(self, *, wait: bool) -> list[RoundAudit]:
        """Take the audits that are done, log them and write them; return them."""
        try:
            done = self._runner.ready(wait=wait)
        except Exception:  # as above: an actor may have died
            LOGGER.exception("the findings of an audit were lost; the training goes on")
            return []
        for audit in done:
            known = self._rounds.get(audit.number)
            self._rounds[audit.number] = audit if known is None else known.with_later(audit)
            if known is None:
                log.announce(audit)
        if done and self._folder is not None:
            try:
                self._write(self._folder, done)
            except Exception:  # as above: the disk may be full, or the folder may be a file
                LOGGER.exception("an audit could not be written to %s", self._folder)
        return done

    def _write(self, folder: Path, done: Sequence[RoundAudit]) -> None:
        """Append audits to the log, and write the page of all rounds again."""
        folder.mkdir(parents=True, exist_ok=True)
        for audit in done:
            log.append(folder / LOG_FILE, audit)
        write_rounds(folder / PAGE_FILE, self.rounds, self._class_names)
