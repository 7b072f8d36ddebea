"""The server's monitor: any strategy of Flower, and beside it what every reply gives away."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from os import PathLike
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import nn

from softleak.errors import SoftleakError
from softleak.integrations.flower import arrays as records
from softleak.integrations.flower import log
from softleak.integrations.flower.auditor import Auditor, Question
from softleak.integrations.flower.engine import Engine, runner
from softleak.integrations.flower.findings import ClientAudit, RoundAudit
from softleak.integrations.flower.page import write_rounds
from softleak.integrations.flower.update import Group, Update

LOGGER = logging.getLogger("softleak")
LOG, PAGE = "audit.jsonl", "index.html"


class Unfit(Enum):
    """What becomes of replies that cannot be a step of this model: NaN, other shapes, nothing."""

    PASS_ON = "they go to the strategy like all others, which may fail on them"
    LEAVE_OUT = "the strategy does not see them"


@dataclass(frozen=True, eq=False)
class _Sent:
    """What a node was sent."""

    state: records.State
    lr: float | None


class LeakageMonitor(Strategy):
    """Wraps a strategy: audits every reply of a training round, changes nothing unless told to.

    ``model`` is the architecture; its weights are those of each round. ``lr`` is the clients'
    learning rate; else the config's ``lr`` is taken, else it is unknown. With a ``folder`` every
    round is written to a log and a page there.
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
        engine: Engine = Engine.INLINE,
    ) -> None:
        self.strategy = strategy
        self.seconds: dict[int, float] = {}  # spent here, by round
        self._lr, self._unfit = lr, unfit
        self._runner = runner(engine, Auditor(model, question or Question()))
        self._folder = None if folder is None else Path(folder)
        self._class_names = tuple(class_names)
        self._sent: dict[int, _Sent] = {}
        self._rounds: dict[int, RoundAudit] = {}

    @property
    def rounds(self) -> list[RoundAudit]:
        """The rounds audited so far, in order."""
        return [self._rounds[number] for number in sorted(self._rounds)]

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        start = time.perf_counter()
        self._sent = _sent(messages, self._lr)
        self.seconds[server_round] = time.perf_counter() - start
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        start = time.perf_counter()
        updates = {r.metadata.src_node_id: self._update(r) for r in replies}
        self._audit(server_round, updates)
        done = self._collect(wait=False)
        self.seconds[server_round] += time.perf_counter() - start
        if self._unfit is Unfit.LEAVE_OUT:
            replies = [r for r in replies if r.has_error() or _fits(updates, r)]
        aggregated, metrics = self.strategy.aggregate_train(server_round, replies)
        return aggregated, _with_metrics(metrics, done)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        LOGGER.info("LeakageMonitor around %s", type(self.strategy).__name__)
        self.strategy.summary()

    def finish(self) -> list[RoundAudit]:
        """Wait for what is under way, and for inputs that were left for later; all rounds."""
        self._collect(wait=True)
        return self.rounds

    def _update(self, reply: Message) -> Update:
        """A reply as a share, or why it is none."""
        node = reply.metadata.src_node_id
        if reply.has_error():
            return Update(node, reason=f"it replied with an error: {reply.error.reason}")
        sent = self._sent.get(node)
        if sent is None:
            return Update(node, reason="it was sent nothing in this round")
        try:
            _, record = records.only_arrays(reply.content)
            share = records.step_between(sent.state, records.tensors(record), sent.lr)
        except SoftleakError as error:
            return Update(node, reason=str(error))
        samples = records.claimed_samples(reply.content)
        return Update(node, share, sent.lr, samples)

    def _audit(self, number: int, updates: dict[int, Update]) -> None:
        """Hand the round over, by what the nodes were sent; silent nodes are named too."""
        silent = {n: Update(n, reason="it did not reply") for n in self._sent if n not in updates}
        members: dict[int, list[Update]] = defaultdict(list)
        for node, update in (updates | silent).items():
            members[id(self._sent[node].state) if node in self._sent else 0].append(update)
        states = {id(sent.state): sent.state for sent in self._sent.values()}
        groups = [Group(states.get(key, {}), tuple(some)) for key, some in members.items()]
        try:
            self._runner.submit(number, groups)
        except Exception:  # a round must not end because of its audit, whatever is wrong
            LOGGER.exception("round %d could not be audited", number)

    def _collect(self, *, wait: bool) -> list[RoundAudit]:
        try:
            done = self._runner.ready(wait=wait)
        except Exception:  # as above: an actor may have died
            LOGGER.exception("findings of an audit were lost")
            return []
        for audit in done:
            known = self._rounds.get(audit.number)
            self._rounds[audit.number] = audit if known is None else known.with_later(audit)
            if known is None:
                _say(audit)
        if done and self._folder is not None:
            try:
                self._write(self._folder, done)
            except Exception:  # as above: the disk may be full, the folder a file
                LOGGER.exception("an audit could not be written to %s", self._folder)
        return done

    def _write(self, folder: Path, done: Sequence[RoundAudit]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for audit in done:
            log.append(folder / LOG, audit)
        write_rounds(folder / PAGE, self.rounds, self._class_names)


def _sent(messages: Iterable[Message], given: float | None) -> dict[int, _Sent]:
    """What each node is sent, read once for all that are sent the same record."""
    states: dict[int, records.State] = {}
    found: dict[int, _Sent] = {}
    for message in messages:
        try:
            _, record = records.only_arrays(message.content)
            if id(record) not in states:
                states[id(record)] = records.tensors(record)
        except SoftleakError as error:
            LOGGER.warning("node %d cannot be audited: %s", message.metadata.dst_node_id, error)
            continue
        lr = records.learning_rate(message.content, given)
        found[message.metadata.dst_node_id] = _Sent(states[id(record)], lr)
    return found


def _fits(updates: dict[int, Update], reply: Message) -> bool:
    return updates[reply.metadata.src_node_id].share is not None


def _with_metrics(metrics: MetricRecord | None, done: Sequence[RoundAudit]) -> MetricRecord | None:
    """The strategy's metrics and those of the audits that are done; its own are left alone."""
    if not done:
        return metrics
    held = MetricRecord() if metrics is None else metrics
    for name, value in done[-1].metrics().items():
        held.setdefault(name, value)
    return held


def _say(audit: RoundAudit) -> None:
    counts = ", ".join(f"{k.removeprefix('softleak-')} {v:.3g}" for k, v in audit.metrics().items())
    LOGGER.info("round %d: %s", audit.number, counts)
    for client in audit.clients:
        _name(audit.number, client)


def _name(number: int, client: ClientAudit) -> None:
    """Say what could not be audited, and which update proves its classes."""
    if client.report is None or client.report.composition.present:
        LOGGER.warning("round %d, node %d: %s", number, client.node, client.words)
