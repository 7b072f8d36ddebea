"""The server's monitor: it wraps a strategy of Flower, and audits what every reply gives away.

The findings go to a log, and to a page of the federation in the style of an audit's page.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import cycle
from os import PathLike
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor, nn

from softleak.audit.leaks import Leak
from softleak.audit.report import CompositionFinding, Method
from softleak.core.errors import SoftleakError, import_extra
from softleak.core.share import LocalTraining
from softleak.core.vocabulary import State
from softleak.guard.auditor import (
    Auditor,
    ClientAudit,
    ClientUpdate,
    Question,
    RoundAudit,
    Weights,
    by_state,
    step_between,
)
from softleak.guard.flower.guard import addressed, claimed_samples, only_arrays, tensors
from softleak.io.atomic import write_text
from softleak.present import page as png
from softleak.present.machine import finite, numbers
from softleak.present.page import fill, tiles
from softleak.present.words import class_name, listed


@dataclass(frozen=True)
class Picture:
    """One client's input as the server can see it."""

    name: str  # the round and the node
    label: str  # the name of the class, or that none is claimed
    words: str  # how well the input was recovered
    found: str | None  # the recovered image as a data URI, if there is one
    true: str | None = None  # the true image as a data URI, if it is known


def picture(
    number: int, client: ClientAudit, names: Sequence[str], true: Tensor | None = None
) -> Picture:
    """Return one client's input as the server can see it, and the true one if it is known."""
    report = client.report
    if report is None:
        return Picture(f"round {number}", "not audited", client.reason, None)
    found, index = report.input.pixels, report.label.class_index
    quality = report.input.psnr_predicted
    return Picture(
        f"round {number}, node {str(client.node)[-4:]}",
        "class not claimed" if index is None else class_name(index, names),
        f"{quality:.0f} dB predicted" if quality is not None and report.input.leaked
        else f"not attacked: {report.input.message}" if report.input.method == Method.NONE
        else "not determined: this attack did not succeed",
        png.picture(found),
        png.picture(true),
    )  # fmt: skip


# How much of a long run the page shows; the log has everything.
LIMITS_PICTURES = 24  # the number of pictures per run
LIMITS_ROUNDS = 3  # the number of last rounds that are shown client by client


HEADLINED = (Leak.LABEL, Leak.INPUT, Leak.COMPOSITION)  # in the sentence about a run


@dataclass(frozen=True, eq=False)
class Federation:
    """One run of a federation."""

    title: str
    note: str  # a sentence about the run
    rounds: Sequence[RoundAudit]
    pictures: Sequence[Picture] = ()  # the inputs as the server can see them
    facts: Sequence[tuple[str, str]] = ()  # names and values that compare findings with the truth

    def count(self, leak: Leak, state: State = State.LEAKED) -> int:
        """Return the number of updates of all rounds in which a kind of leak is in this state."""
        return sum(audit.count(leak, state) for audit in self.rounds)

    @property
    def tiles(self) -> list[dict[str, Any]]:
        """Return of each kind of leak how many updates have it, and how many were not attacked."""
        if self.audited:
            return tiles(self.count, self.audited)
        # Nothing was attacked, which must not look like no leak.
        every = max(sum(len(audit.clients) for audit in self.rounds), 1)
        return tiles(lambda _, state: every if state is State.NOT_ATTACKED else 0, every)

    @property
    def audited(self) -> int:
        """The number of updates of all rounds that could be read."""
        return sum(len(audit.audited) for audit in self.rounds)

    @property
    def latest(self) -> Sequence[RoundAudit]:
        """The last rounds, which are shown client by client."""
        return self.rounds[-LIMITS_ROUNDS:]

    @property
    def refused(self) -> list[tuple[int, ClientAudit]]:
        """The updates that could not be audited, each with the number of its round."""
        every = ((audit.number, c) for audit in self.rounds for c in audit.clients)
        return [(number, client) for number, client in every if client.report is None]


def write_rounds(path: Path, rounds: Sequence[RoundAudit], names: Sequence[str] = ()) -> None:
    """Write the page of one run, either whole or not at all."""
    note = "The server computed this from nothing but the weights it sent and those that came back."
    pictures = [picture(audit.number, c, names) for audit in rounds for c in audit.audited]
    shown = [p for p in pictures if p.found][:LIMITS_PICTURES]
    run = Federation("What the server can see", note, rounds, shown)
    write_federations(path, headline(run), [run], names)


def write_federations(
    path: Path, title: str, runs: Sequence[Federation], names: Sequence[str] = ()
) -> None:
    """Write the page of some runs, one below the other."""
    text = fill(
        "rounds.html", "softleak.guard.flower", title=title, runs=runs,
        leaks={leak: leak.short for leak in Leak},
        class_name=lambda index: class_name(index, names),
    )  # fmt: skip
    write_text(path, text)


def headline(run: Federation) -> str:
    """Return a run in a sentence or two."""
    if not run.audited:
        return "No update could be audited."
    tried = {k: sum(run.count(k, state) for state in State if state.attacked) for k in HEADLINED}
    parts = [
        f"{run.count(k)}{'' if n == run.audited else f' of the {n} attacked'} gave away {k.their}"
        for k, n in tried.items() if n
    ]  # fmt: skip
    said = [f"Of {run.audited} updates, {listed(parts)}."] if parts else []
    left = [k.short for k, n in tried.items() if not n]
    return " ".join([*said, *([f"Not attacked: {listed(left)}."] if left else [])])


AUDIT_ACTORS = 2  # the number of Ray actors


class AuditEngine(Enum):
    """Where the monitor's audits run."""

    INLINE = "labels in the server, before it aggregates; inputs when the run is over"
    RAY = "all on Ray actors; a round's findings come when they are ready"


class Inline:
    """A runner in this process: labels at once, inputs of some clients when the run is over."""

    def __init__(self, auditor: Auditor) -> None:
        self._auditor, self._inputs = auditor, auditor.question.inputs
        self._done: list[RoundAudit] = []
        self._later: list[tuple[int, list[ClientUpdate]]] = []

    def submit(self, number: int, updates: Sequence[ClientUpdate]) -> None:
        """Audit the labels of a round, and keep the first updates from each state for later."""
        self._done.append(self._auditor.audit(number, updates))
        if self._inputs:
            read = by_state([update for update in updates if update.share is not None])
            self._later.append((number, [u for some in read for u in some[: self._inputs]]))

    def ready(self, *, wait: bool) -> list[RoundAudit]:
        """Return the audits since the last call; attack the inputs that were kept if ``wait``."""
        done, self._done = self._done, []
        if wait:
            later, self._later = self._later, []
            done += [self._auditor.audit(n, updates, inputs=self._inputs) for n, updates in later]
        return done


class OnRay:
    """A runner on Ray actors, in the Ray that is running already or in a new one."""

    def __init__(self, auditor: Auditor) -> None:
        self._ray: Any = import_extra("ray", "audits on actors need Ray", "ray")
        self._auditor = auditor
        self._actors: Any = None
        self._waiting: list[Any] = []

    def submit(self, number: int, updates: Sequence[ClientUpdate]) -> None:
        """Hand a round over to the next actor."""
        asked = self._auditor.question
        if self._actors is None:  # not before the first round, because a simulation starts Ray
            self._ray.init(ignore_reinit_error=True, log_to_driver=False)
            # No core is reserved, because a simulation has given all of them to its clients.
            remote = self._ray.remote(num_cpus=0)(Auditor)
            made = [remote.remote(self._auditor.model, asked) for _ in range(AUDIT_ACTORS)]
            self._actors = cycle(made)
        audit = next(self._actors).audit
        self._waiting.append(audit.remote(number, list(updates), inputs=asked.inputs))

    def ready(self, *, wait: bool) -> list[RoundAudit]:
        """Return the audits that the actors have completed; all of them if ``wait``."""
        if not self._waiting:
            return []
        done, self._waiting = self._ray.wait(
            self._waiting, num_returns=len(self._waiting), timeout=None if wait else 0
        )
        return list(self._ray.get(done))


LOGGER = logging.getLogger("softleak")


def append(path: Path, audit: RoundAudit) -> None:
    """Append the lines of a round to the log, in one write; the file is made if need be."""
    lines = [json.dumps(finite(line(audit.number, c)), allow_nan=False) for c in audit.clients]
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(f"{text}\n" for text in lines))


def line(number: int, client: ClientAudit) -> dict[str, Any]:
    """Return one client of one round as plain data."""
    said: dict[str, Any] = {"round": number, "node": str(client.node), "verdict": client.words}
    if client.report is None:
        return {**said, "audited": False, "reason": client.reason}
    recovery, found = client.report.label.recovery, client.report.input
    said |= {
        "audited": True,
        "status": recovery.status.name,
        "leaks": [leak.value for leak in Leak if leak in client.leaks],
        "states": {leak.value: state.value for leak, state in client.report.states.items()},
        "class": client.report.label.class_index,
        "label": numbers(recovery.label) if Leak.LABEL in client.leaks else None,
        "confidence": recovery.confidence,
        "noise": recovery.noise,
        "input_psnr_predicted": found.psnr_predicted,
    }
    return said | _composition(client.report.composition)


def _composition(found: CompositionFinding) -> dict[str, Any]:
    """Return what is known of the classes in an update; empty if they were not attacked."""
    if not found.attacked:
        return {}
    counts = found.counts
    return {
        "gradients_at_least": found.samples,
        "classes_present": list(found.present),
        "classes_raised": list(found.raised),
        "class_counts_estimated": None if counts is None else list(counts.estimated),
        "class_counts_at_least": list(counts.low) if counts is not None and counts.low else None,
        "class_counts_at_most": list(counts.high) if counts is not None and counts.high else None,
        "composition": found.message,
    }


def announce(audit: RoundAudit) -> None:
    """Log a round in numbers, and warn of what proves classes, does not fit or was not audited."""
    counts = ", ".join(f"{k.removeprefix('softleak-')} {v:.3g}" for k, v in audit.metrics().items())
    LOGGER.info("round %d: %s", audit.number, counts)
    for client in audit.clients:
        said = client.report is None or client.report.composition.raised
        if said or client.contradicted:
            LOGGER.warning("round %d, node %d: %s", audit.number, client.node, client.words)


def sent_states(
    messages: Iterable[Message], lr: float | None, client: LocalTraining | None = None
) -> dict[int, ClientUpdate]:
    """Return what each node is sent, by node; one whose message cannot be read is left out.

    A record that goes to several nodes is read once.
    """
    states: dict[int, Weights] = {}
    found: dict[int, ClientUpdate] = {}
    for message in messages:
        node = message.metadata.dst_node_id
        try:
            _, record = only_arrays(message.content)
            if id(record) not in states:
                states[id(record)] = tensors(record)
        except SoftleakError as error:
            LOGGER.warning("node %d cannot be audited in this round: %s", node, error)
            continue
        found[node] = addressed(node, message, states[id(record)], lr, client)
    return found


def update_of(reply: Message, sent: Mapping[int, ClientUpdate]) -> ClientUpdate:
    """Return a reply as an update that holds a share, or the reason why it holds none."""
    node = reply.metadata.src_node_id
    before = sent.get(node, ClientUpdate(node))
    if reply.has_error():
        return replace(before, reason=f"it replied with an error: {reply.error.reason}")
    if node not in sent:
        return replace(before, reason="it was sent nothing in this round")
    try:
        _, record = only_arrays(reply.content)
        share = step_between(before.received, tensors(record), before.lr, before.client)
    except SoftleakError as error:
        return replace(before, reason=str(error))
    return replace(before, share=share, samples=claimed_samples(reply.content))


def with_metrics(metrics: MetricRecord | None, added: Mapping[str, float]) -> MetricRecord | None:
    """Return a strategy's metrics, if any, with ours added; its own are not overwritten."""
    if not added:
        return metrics
    held = MetricRecord() if metrics is None else metrics
    for name, value in added.items():
        held.setdefault(name, value)
    return held


LOG_FILE, PAGE_FILE = "audit.jsonl", "index.html"


class Unfit(Enum):
    """What becomes of a reply that cannot be a step of this model, such as one of NaN."""

    PASS_ON = "they go to the strategy like all others, which may fail on them"
    LEAVE_OUT = "the strategy does not see them"


class LeakageMonitor(Strategy):
    """A strategy that audits every reply of a training round, and leaves the rest to another.

    It changes nothing about the training unless ``unfit`` says so. An error in an audit is logged
    and never ends a round. ``seconds`` holds the time spent in the monitor, by round.

    Args:
        strategy: the strategy that configures and aggregates.
        model: the architecture of the federation; the weights are those of each round.
        lr: the clients' learning rate. By default it is the ``lr`` of the round's config, if any.
        question: what is asked of every round.
        folder: the folder of the log and the page; None writes neither.
        class_names: the names of the classes on the page.
        unfit: what becomes of replies that cannot be a step of this model.
        engine: where the audits run.
    """

    def __init__(
        self, strategy: Strategy, model: nn.Module, *, lr: float | None = None, question: Question |
        None = None, folder: str | PathLike[str] | None = None, class_names: Sequence[str] = (),
        unfit: Unfit = Unfit.PASS_ON, engine: AuditEngine = AuditEngine.INLINE,
    ) -> None:  # fmt: skip
        self.strategy = strategy
        self.seconds: dict[int, float] = {}
        self._lr, self._unfit = lr, unfit
        asked = question or Question()
        self._client = asked.client
        auditor = Auditor(model, asked)
        self._runner: Inline | OnRay = (
            OnRay(auditor) if engine is AuditEngine.RAY else Inline(auditor)
        )
        self._folder = None if folder is None else Path(folder)
        self._class_names = tuple(class_names)
        self._sent: dict[int, ClientUpdate] = {}
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

    def _submit(self, number: int, updates: dict[int, ClientUpdate]) -> None:
        """Hand the updates of a round, and the nodes that are silent, over to be audited."""
        missing = [one for node, one in self._sent.items() if node not in updates]
        silent = [replace(one, reason="it did not reply") for one in missing]
        try:
            self._runner.submit(number, [*updates.values(), *silent])
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
                announce(audit)
        if done and self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                for audit in done:
                    append(self._folder / LOG_FILE, audit)
                write_rounds(self._folder / PAGE_FILE, self.rounds, self._class_names)
            except Exception:  # as above: the disk may be full, or the folder may be a file
                LOGGER.exception("an audit could not be written to %s", self._folder)
        return done
