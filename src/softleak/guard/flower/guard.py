"""A mod for a Flower client: a guard of its own update."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode
from torch import Tensor, nn

from softleak.audit.leaks import Leak
from softleak.audit.sweeps import TREATMENTS, Treatment
from softleak.audit.weakest import Make, Stopped
from softleak.core.errors import ShareError, SoftleakError
from softleak.core.share import UNKNOWN, LocalTraining, read_settings
from softleak.defenses.defense import GaussianNoise
from softleak.guard.auditor import ClientUpdate, Question, Weights
from softleak.guard.guard import Action, GuardOutcome, GuardPolicy, Promise, UpdateGuard

LEARNING_RATE_KEY = "lr"  # the name of the learning rate in the config of Flower's examples
SAMPLES_METRIC = "num-examples"  # the metric in which a client counts its samples


def only_arrays(content: RecordDict) -> tuple[str, ArrayRecord]:
    """Return the one record of arrays in a message, with its key, or raise ``ShareError``."""
    records = content.array_records
    if len(records) != 1:
        raise ShareError(f"expected one record of arrays, got {len(records)}")
    return next(iter(records.items()))


def tensors(record: ArrayRecord) -> dict[str, Tensor]:
    """Return copies of the arrays as tensors; raise ``ShareError`` if one cannot be read."""
    found = {}
    for name, array in record.items():
        try:
            # It is a copy, because a mod or the app may change the array later.
            found[name] = torch.tensor(array.numpy())
        except (ValueError, TypeError, OSError, EOFError, KeyError, MemoryError) as error:
            raise ShareError(f"the array {name!r} cannot be read ({error})") from error
    return found


def _said(records: Mapping[str, Mapping[str, object]], name: str) -> float | None:
    """Return the first positive number of this name in some records."""
    said = (record.get(name) for record in records.values())
    return next((value for value in said if isinstance(value, int | float) and value > 0), None)


def learning_rate(content: RecordDict, lr: float | None) -> float | None:
    """Return the learning rate that was given, or that of the round's config; None if unknown."""
    return _said(content.config_records, LEARNING_RATE_KEY) if lr is None else lr


def claimed_samples(content: RecordDict) -> int | None:
    """Return the number of samples that a client says it used; None if it does not say."""
    return int(_said(content.metric_records, SAMPLES_METRIC) or 0) or None


def round_of(content: RecordDict) -> int:
    """Return the number of the round as Flower's strategies send it; 0 if they do not."""
    return int(_said(content.config_records, "server-round") or 0)


CONFIG_SETTINGS = {  # names in a config, as Flower's examples write them, and ours
    "momentum": "momentum",
    "weight-decay": "weight_decay",
    "nesterov": "nesterov",
    "optimiser": "optimiser",
    "optimizer": "optimiser",
    "batch-size": "batch_size",
    "local-epochs": "epochs",
    "local-steps": "steps",
}


def local_training(
    content: RecordDict, lr: float | None, said: LocalTraining | None
) -> LocalTraining | None:
    """Return how a client trains, by what is said or by its config; None if neither tells."""
    rate = UNKNOWN if lr is None else lr
    if said is not None:
        return replace(said.training, lr=said.lr if lr is None and said.trains else rate)
    held = {
        CONFIG_SETTINGS[name]: value
        for config in content.config_records.values()
        for name, value in config.items()
        if name in CONFIG_SETTINGS and isinstance(value, int | float | str | bool)
    }
    if not held:
        return None
    settings = read_settings(",".join(f"{name}={value}" for name, value in held.items()))
    return LocalTraining(**{**settings, "lr": rate})  # type: ignore[arg-type]


def addressed(
    node: int, message: Message, state: Weights, lr: float | None, said: LocalTraining | None
) -> ClientUpdate:
    """Return what a node is sent, as an update that holds no share yet."""
    rate = learning_rate(message.content, lr)
    trained = local_training(message.content, rate, said)
    return ClientUpdate(node, lr=rate, client=trained, received=state)


LOGGER = logging.getLogger("softleak")
CONTEXT_KEY = "softleak"  # the record of the client's context that lasts between rounds


Source = Callable[[Context, int], np.random.Generator]  # of the noise of a client in a round


def fresh(_: Context, __: int) -> np.random.Generator:
    """Return a source seeded by the system: whoever knew its seed could subtract the noise."""
    return np.random.default_rng()


class LeakageGuard:
    """A mod for ``ClientApp(mods=[…])`` that audits the client's own update and acts on it.

    Args:
        model: the architecture of the federation; the weights are those received.
        action: what to do about an update that gives away what it must not.
        stop: the leaks that must not happen.
        lr: the client's learning rate. By default it is the ``lr`` of the round's config, if any.
        question: what is known beforehand, such as the shape of an input.
        seeds: the number of trials for each setting of the noise.
        noise: makes a defence of a standard deviation and a source, such as ``GaussianNoise``.
        treatments: what may be done before the noise; ``(Treatment(),)`` is noise alone.
        refuse_unattacked: whether what must not leak and could not be attacked is kept back.
        promise: what ``Action.PROVE`` proves of every update. All other records of a reply are then
            left out, but for the number of samples: they would tell of the data without noise.
        metrics: whether the outcome is added to the reply's metrics, which strategies want alike.
        source: where the noise comes from. Anything but ``fresh`` is for experiments.
    """

    def __init__(
        self, model: nn.Module, action: Action, *, stop: frozenset[Leak] = frozenset({Leak.INPUT}),
        lr: float | None = None, question: Question | None = None, seeds: int = 3, noise: Make =
        GaussianNoise, treatments: Sequence[Treatment] = TREATMENTS, refuse_unattacked: bool =
        False, promise: Promise | None = None, metrics: bool = True, source: Source = fresh,
    ) -> None:  # fmt: skip
        policy = GuardPolicy(action, stop, seeds, noise, treatments, refuse_unattacked, promise)
        self.guard = UpdateGuard(model, policy, question or Question())
        self.metrics, self._lr, self._source = metrics, lr, source

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Let the client train, and return its reply as it is, defended, or refused."""
        if message.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        number = round_of(message.content)
        try:
            # Before the client trains, because it may change the arrays in place.
            _, received = only_arrays(message.content)
            before = tensors(received)
        except SoftleakError as error:
            return self._unread(message, call_next(message, context), number, str(error))
        sent = addressed(context.node_id, message, before, self._lr, self.guard.question.client)
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        start = perf_counter()
        try:
            key, record = only_arrays(reply.content)
            update = sent.sending(tensors(record), claimed_samples(reply.content))
            source = self._source(context, number)
            outcome = self.guard.outcome(update, _remembered(context), source, _proved(context))
        except SoftleakError as error:
            return self._unread(message, reply, number, str(error))
        self.guard.say(number, outcome, perf_counter() - start)
        if outcome.refusal:
            return _refused(message, outcome.refusal)
        if outcome.sent is not None:
            state = update.after(outcome.sent, self.guard.model)
            reply.content[key] = ArrayRecord({name: Array(state[name].numpy()) for name in record})
            _keep_told(reply, update, context, outcome)
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


def _keep_told(
    reply: Message, update: ClientUpdate, context: Context, outcome: GuardOutcome
) -> None:
    """Keep for the next round the setting of the defence, or how many updates were proved.

    Of an update that is proved hidden nothing else is told than its arrays and its samples.
    """
    if outcome.promise is not None:
        context.state[CONTEXT_KEY] = ConfigRecord({"proved": _proved(context) + 1})
        key, arrays = only_arrays(reply.content)
        counted = MetricRecord({SAMPLES_METRIC: update.samples} if update.samples else {})
        reply.content = RecordDict({key: arrays, "metrics": counted})
    if outcome.stopped is not None:
        treatment = outcome.stopped.treatment
        context.state[CONTEXT_KEY] = ConfigRecord(
            {"setting": outcome.stopped.setting, "kept": treatment.kept, "length": treatment.length}
        )


def _proved(context: Context) -> int:
    held = context.state.config_records.get(CONTEXT_KEY) or ConfigRecord()
    return int(str(held.get("proved", 0)))


def _remembered(context: Context) -> Stopped | None:
    """Return the defence of the round before, or None in the first round."""
    held = context.state.config_records.get(CONTEXT_KEY) or ConfigRecord()
    said = (held.get(name) for name in ("setting", "kept", "length"))
    values = [value for value in said if isinstance(value, float)]
    if len(values) < 3:
        return None
    setting, kept, length = values
    return Stopped(setting, None, Treatment(kept, length))
