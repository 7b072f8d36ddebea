"""The client's guard: a mod of Flower that audits an update before it leaves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, MetricRecord
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode
from torch import nn

from softleak.auditing import Leak
from softleak.auditing.treatments import TREATMENTS, Treatment
from softleak.auditing.weakest import Make, Stopped
from softleak.defenses import GaussianNoise
from softleak.errors import SoftleakError
from softleak.integrations.flower import arrays as records
from softleak.integrations.flower.client_config import local_training
from softleak.integrations.guarding.auditor import Question
from softleak.integrations.guarding.guard_outcome import GuardOutcome
from softleak.integrations.guarding.own_step import OwnStep
from softleak.integrations.guarding.update_guard import Action, GuardPolicy, UpdateGuard

LOGGER = logging.getLogger("softleak")
CONTEXT_KEY = "softleak"  # the record of the client's context that lasts between rounds


Source = Callable[[Context, int], np.random.Generator]  # of the noise of a client in a round


def fresh(_: Context, __: int) -> np.random.Generator:
    """Return a source seeded by the operating system.

    Whoever knew the seed of the noise could subtract it again.
    """
    return np.random.default_rng()


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
        treatments: what may be done to an update before the noise; ``(Treatment(),)`` is noise
            alone.
        refuse_unattacked: whether an update is kept back if a leak that must not happen could not
            be attacked.
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
        treatments: Sequence[Treatment] = TREATMENTS,
        refuse_unattacked: bool = False,
        metrics: bool = True,
        source: Source = fresh,
    ) -> None:
        policy = GuardPolicy(action, stop, seeds, noise, treatments, refuse_unattacked)
        self.guard = UpdateGuard(model, policy, question or Question())
        self.metrics, self._lr, self._source = metrics, lr, source

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
        trained = local_training(message.content, lr, self.guard.question.client)
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        start = perf_counter()
        try:
            key, record = records.only_arrays(reply.content)
            samples = records.claimed_samples(reply.content)
            step = OwnStep.of(before, records.tensors(record), lr, samples, self.guard.model)
            step = replace(step, client=trained)
            source = self._source(context, number)
            outcome = self.guard.outcome(step, context.node_id, _remembered(context), source)
        except SoftleakError as error:
            return self._unread(message, reply, number, str(error))
        self.guard.say(number, outcome, perf_counter() - start)
        if outcome.refusal:
            return _refused(message, outcome.refusal)
        if outcome.sent is not None:
            reply.content[key] = records.record_of(step.after(outcome.sent), record)
            _remember(context, outcome)
        if self.metrics:
            add_metrics(reply, outcome.metrics(self.guard.policy.stop, perf_counter() - start))
        return reply

    def _unread(self, message: Message, reply: Message, number: int, why: str) -> Message:
        """Return what is sent for an update that cannot be audited: it only passes with WARN."""
        LOGGER.warning("round %d: the update could not be audited: %s", number, why)
        if reply.has_error() or self.guard.policy.action is Action.WARN:
            return reply
        return _refused(message, f"the update could not be audited: {why}")


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


def _remember(context: Context, outcome: GuardOutcome) -> None:
    """Keep the setting of the defence for the next round."""
    if outcome.stopped is not None:
        treatment = outcome.stopped.treatment
        context.state[CONTEXT_KEY] = ConfigRecord(
            {"setting": outcome.stopped.setting, "kept": treatment.kept, "length": treatment.length}
        )


def _remembered(context: Context) -> Stopped | None:
    """Return the defence of the round before, or None in the first round."""
    held = context.state.config_records.get(CONTEXT_KEY) or ConfigRecord()
    said = (held.get(name) for name in ("setting", "kept", "length"))
    values = [value for value in said if isinstance(value, float)]
    if len(values) < 3:
        return None
    setting, kept, length = values
    return Stopped(setting, None, Treatment(kept, length))
