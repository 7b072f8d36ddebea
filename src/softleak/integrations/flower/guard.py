"""The client's guard: a mod of Flower that audits an update before it leaves."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from enum import Enum
from time import perf_counter

from flwr.app import Context, Error, Message, MessageType, MetricRecord
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode
from torch import nn

from softleak.audit import Leak
from softleak.audit.subject import with_chain
from softleak.audit.weakest import Make, Search, check_search
from softleak.defenses import GaussianNoise
from softleak.errors import OptionError, SoftleakError
from softleak.integrations.flower import arrays as records
from softleak.integrations.flower.auditor import Auditor, Question
from softleak.integrations.flower.remedy import Outcome, Source, defended, fresh, told
from softleak.integrations.flower.update import Update
from softleak.naming import own_names
from softleak.share import GradientShare

LOGGER = logging.getLogger("softleak")


class Action(Enum):
    """What a guard does about an update that gives away what it must not."""

    WARN = "send it as it is, and say so"
    DEFEND = "add the weakest noise found to stop the attack"
    REFUSE = "do not send it"


@dataclass(frozen=True, eq=False)
class _Step:
    """What the client received and is about to send, and the share between them."""

    key: str
    before: records.State
    share: GradientShare
    lr: float | None
    samples: int | None
    names: dict[str, str]  # the model's name of each array


class LeakageGuard:
    """A mod for ``ClientApp(mods=[…])``: audits the client's own update, and acts on it.

    ``model`` is the architecture; its weights are those received. ``lr`` is the client's learning
    rate; else the config's ``lr`` is taken, else it is unknown. ``stop`` is what must not leak.
    ``noise`` makes a defence of a standard deviation and a source: ``GaussianNoise``,
    ``LaplaceNoise`` or one's own. Without ``metrics`` nothing is added to the reply: strategies
    want the same metrics of all clients, which not all may have from a guard. ``source`` is where
    noise comes from; one that is not ``fresh`` is for experiments that are to be repeated.
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
        if message.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        number = records.round_of(message.content)
        try:
            _, received = records.only_arrays(message.content)
            before = records.tensors(received)
        except SoftleakError as error:
            return self._unread(message, call_next(message, context), number, str(error))
        lr = records.learning_rate(message.content, self._lr)
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        start = perf_counter()
        try:
            step = self._step(before, reply, lr)
            outcome = self._outcome(step, context, number)
        except SoftleakError as error:
            return self._unread(message, reply, number, str(error))
        self._say(number, outcome, perf_counter() - start)
        if outcome.refusal:
            return _refused(message, outcome.refusal)
        if outcome.sent is not None:
            _, record = records.only_arrays(reply.content)
            size = 1.0 if step.lr is None else step.lr
            sent = outcome.sent.renamed({own: name for name, own in step.names.items()})
            reply.content[step.key] = records.record_after(record, step.before, sent, size)
        if self.metrics:
            _add(reply, _metrics(outcome, self.stop, perf_counter() - start))
        return reply

    def _step(self, before: records.State, reply: Message, lr: float | None) -> _Step:
        key, record = records.only_arrays(reply.content)
        share = records.step_between(before, records.tensors(record), lr)
        names = own_names(share, self._model)
        own = share.renamed(names)
        kept = own.without(*(own.keys() - dict(self._model.named_parameters()).keys()))
        return _Step(key, before, kept, lr, records.claimed_samples(reply.content), names)

    def _outcome(self, step: _Step, context: Context, number: int) -> Outcome:
        """Audit the step, and decide."""
        inputs = Leak.INPUT in self.stop
        subject = self._auditor.subject(step.before)
        subject = with_chain(subject) if inputs else subject
        update = Update(context.node_id, step.share, step.lr, step.samples)
        found = self._auditor.one(subject, update, inputs=inputs)
        leaking = found.leaks & self.stop
        if not leaking or found.report is None or self.action is Action.WARN:
            return Outcome(found)
        if self.action is Action.REFUSE:
            what = ", ".join(sorted(leak.value for leak in leaking))
            return Outcome(found, refusal=f"the update gives away: {what}")
        options = replace(self._auditor.question.options(update.scale_known), inputs=inputs)
        search = Search.of(
            subject, step.share, found.report, options, self.stop, self.seeds, self._noise
        )
        return defended(found, search, context, self._source(context, number))

    def _unread(self, message: Message, reply: Message, number: int, why: str) -> Message:
        """An update that cannot be audited goes unless the guard is to act."""
        LOGGER.warning("round %d: the update could not be audited: %s", number, why)
        if reply.has_error() or self.action is Action.WARN:
            return reply
        return _refused(message, f"the update could not be audited: {why}")

    def _say(self, number: int, outcome: Outcome, seconds: float) -> None:
        did, found = told(outcome, self.stop), outcome.found
        level = logging.WARNING if found.leaks else logging.INFO
        LOGGER.log(level, "round %d: %s %s (%.1f s)", number, found.words, did, seconds)


def _refused(message: Message, why: str) -> Message:
    error = Error(ErrorCode.MOD_FAILED_PRECONDITION, f"softleak's guard: {why}")
    return Message(error, reply_to=message)


def _metrics(outcome: Outcome, stop: frozenset[Leak], seconds: float) -> dict[str, float]:
    """The same names in every reply of a guard, which strategies insist on.

    Inputs are attacked only to stop them; else they have no number. What could not be attacked this
    time is said in a number of its own.
    """
    never = {Leak.INPUT} - stop
    stopped, found = outcome.stopped, outcome.found
    return {
        **{f"guard-{leak.value}": float(leak in found.leaks) for leak in Leak if leak not in never},
        **{f"guard-{leak.value}-not-attacked": float(leak in found.unattacked) for leak in Leak},
        "guard-defended": float(stopped is not None),
        "guard-noise": 0.0 if stopped is None else stopped.setting,
        "guard-class-bound": 1.0 if stopped is None else stopped.class_bound,
        "guard-seconds": seconds,
    }


def _add(reply: Message, metrics: dict[str, float]) -> None:
    held = next(iter(reply.content.metric_records.values()), None)
    if held is None:
        held = reply.content["metrics"] = MetricRecord()
    for name, value in metrics.items():
        held[name] = value
