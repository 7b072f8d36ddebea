"""The client's guard: a mod of Flower that audits an update before it leaves."""

from __future__ import annotations

import logging
from dataclasses import replace
from enum import Enum
from time import perf_counter

from flwr.app import Context, Error, Message, MessageType, MetricRecord
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode
from torch import nn

from softleak.auditing import Leak
from softleak.auditing.weakest import Make, Search, check_search
from softleak.defenses import GaussianNoise
from softleak.errors import OptionError, SoftleakError
from softleak.integrations.flower import arrays as records
from softleak.integrations.flower.auditor import Auditor, Question
from softleak.integrations.flower.client_config import local_training
from softleak.integrations.flower.guard_outcome import GuardOutcome
from softleak.integrations.flower.remedy import Source, defended, fresh
from softleak.integrations.flower.update import OwnStep, Update
from softleak.local_training import LocalTraining

LOGGER = logging.getLogger("softleak")


class Action(Enum):
    """What a guard does about an update that gives away what it must not."""

    WARN = "send it as it is, and say so"
    DEFEND = "add the weakest noise found to stop the attack"
    REFUSE = "do not send it"


class LeakageGuard:
    """A mod for ``ClientApp(mods=[…])`` that audits the client's own update and acts on it.

    Args:
        model: the architecture of the federation; the weights are those received.
        action: what to do about an update that gives away what it must not.
        stop: the leaks that must not happen.
        lr: the client's learning rate. By default it is the ``lr`` of the round's config; without
            that it is unknown.
        question: what is known beforehand, such as the shape of an input.
        seeds: the number of trials for each setting of the noise.
        noise: the function that makes a defence of a standard deviation and a source, such as
            ``GaussianNoise`` or ``LaplaceNoise``.
        metrics: whether the outcome is added to the reply's metrics. Strategies want the same
            metrics of all clients, so switch it off if not all of them have a guard.
        source: where the noise comes from. Anything but ``fresh`` is for experiments that are to
            be repeated.
    """

    def __init__(
        self,
        model: nn.Module,
        action: Action,
        *,
        stop: frozenset[Leak] = frozenset({Leak.INPUT}),
        lr: float | None = None,
        question: Question | None = None,
        seeds: int = 3,
        noise: Make = GaussianNoise,
        metrics: bool = True,
        source: Source = fresh,
    ) -> None:
        if not stop:
            raise OptionError("expected at least one kind of leak to stop")
        if action is Action.DEFEND:
            check_search(stop, seeds)
        self.action, self.stop, self.seeds, self.metrics = action, stop, seeds, metrics
        self._lr, self._noise, self._source = lr, noise, source
        self._auditor = Auditor(model, question or Question())
        self._model = model

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Let the client train, and return its reply as it is, defended, or refused."""
        if message.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        number = records.round_of(message.content)
        try:
            # Before the client trains, because it may change the arrays in place.
            _, received = records.only_arrays(message.content)
            before = records.tensors(received)
        except SoftleakError as error:
            return self._unread(message, call_next(message, context), number, str(error))
        lr = records.learning_rate(message.content, self._lr)
        trained = local_training(message.content, lr, self._auditor.question.client)
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        start = perf_counter()
        try:
            step = OwnStep.of(before, reply, lr, self._model)
            outcome = self._outcome(step, context, number, trained)
        except SoftleakError as error:
            return self._unread(message, reply, number, str(error))
        self._say(number, outcome, perf_counter() - start)
        if outcome.refusal:
            return _refused(message, outcome.refusal)
        if outcome.sent is not None:
            step.replace_in(reply, outcome.sent)
        if self.metrics:
            add_metrics(reply, outcome.metrics(self.stop, perf_counter() - start))
        return reply

    def _outcome(
        self, step: OwnStep, context: Context, number: int, client: LocalTraining | None
    ) -> GuardOutcome:
        """Audit the step, and decide what becomes of it."""
        inputs = Leak.INPUT in self.stop
        subject = self._auditor.subject(step.before)
        update = Update(context.node_id, step.share, step.lr, step.samples, client=client)
        found = self._auditor.one(subject, update, inputs=inputs)
        leaking = found.leaks & self.stop
        if not leaking or found.report is None or self.action is Action.WARN:
            return GuardOutcome(found)
        if self.action is Action.REFUSE:
            what = ", ".join(sorted(leak.value for leak in leaking))
            return GuardOutcome(found, refusal=f"the update gives away: {what}")
        options = replace(self._auditor.question.options(update.scale_known), inputs=inputs)
        search = Search.of(
            subject, step.share, found.report, options, self.stop, self.seeds, self._noise
        )
        return defended(found, search, context, self._source(context, number))

    def _unread(self, message: Message, reply: Message, number: int, why: str) -> Message:
        """Return what is sent for an update that cannot be audited: it only passes with WARN."""
        LOGGER.warning("round %d: the update could not be audited: %s", number, why)
        if reply.has_error() or self.action is Action.WARN:
            return reply
        return _refused(message, f"the update could not be audited: {why}")

    def _say(self, number: int, outcome: GuardOutcome, seconds: float) -> None:
        """Log what the update gives away, and what became of it."""
        did, found = outcome.words(self.stop), outcome.found
        level = logging.WARNING if found.leaks else logging.INFO
        LOGGER.log(level, "round %d: %s %s (%.1f s)", number, found.words, did, seconds)


def _refused(message: Message, why: str) -> Message:
    """Return an error as the reply, which holds no arrays."""
    error = Error(ErrorCode.MOD_FAILED_PRECONDITION, f"softleak's guard: {why}")
    return Message(error, reply_to=message)


def add_metrics(reply: Message, metrics: dict[str, float]) -> None:
    """Add metrics to those of a reply."""
    held = next(iter(reply.content.metric_records.values()), None)
    if held is None:
        held = reply.content["metrics"] = MetricRecord()
    for name, value in metrics.items():
        held[name] = value
