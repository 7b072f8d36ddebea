"""From Flower's messages to updates: what each node was sent, and the step that it sent back."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flwr.app import Message, MetricRecord

from softleak.errors import SoftleakError
from softleak.integrations.flower import arrays as records
from softleak.integrations.flower.client_config import local_training
from softleak.integrations.guarding.client_update import Group, Update
from softleak.integrations.guarding.states import State, step_between
from softleak.local_training import LocalTraining

LOGGER = logging.getLogger("softleak")


@dataclass(frozen=True, eq=False)
class SentState:
    """What a node was sent at the beginning of a round.

    Attributes:
        state: the weights and buffers by name.
        lr: the learning rate that the node uses; None if it is unknown.
        client: how the node trains; None if nothing but its learning rate is known.
    """

    state: State
    lr: float | None
    client: LocalTraining | None = None


def sent_states(
    messages: Iterable[Message], lr: float | None, client: LocalTraining | None = None
) -> dict[int, SentState]:
    """Return what each node is sent, by node.

    A record that goes to several nodes is read once. A node whose message cannot be read is left
    out, with a warning.

    Args:
        messages: the messages of a round.
        lr: the learning rate that was given; None to take that of the message.
        client: how all clients train, if somebody said it; None to take what the message says.
    """
    states: dict[int, State] = {}
    found: dict[int, SentState] = {}
    for message in messages:
        node = message.metadata.dst_node_id
        try:
            _, record = records.only_arrays(message.content)
            if id(record) not in states:
                states[id(record)] = records.tensors(record)
        except SoftleakError as error:
            LOGGER.warning("node %d cannot be audited in this round: %s", node, error)
            continue
        rate = records.learning_rate(message.content, lr)
        trained = local_training(message.content, rate, client)
        found[node] = SentState(states[id(record)], rate, trained)
    return found


def update_of(reply: Message, sent: Mapping[int, SentState]) -> Update:
    """Return a reply as an update that holds a share, or the reason why it holds none.

    Args:
        reply: what a node sent back.
        sent: what all nodes were sent.
    """
    node = reply.metadata.src_node_id
    if reply.has_error():
        return Update(node, reason=f"it replied with an error: {reply.error.reason}")
    if node not in sent:
        return Update(node, reason="it was sent nothing in this round")
    before = sent[node]
    try:
        _, record = records.only_arrays(reply.content)
        share = step_between(before.state, records.tensors(record), before.lr)
    except SoftleakError as error:
        return Update(node, reason=str(error))
    said = records.claimed_samples(reply.content)
    return Update(node, share, before.lr, said, client=before.client)


def grouped(sent: Mapping[int, SentState], updates: Mapping[int, Update]) -> list[Group]:
    """Return the updates of a round, grouped by the state that the nodes were sent.

    A node that did not reply is among them, with that as the reason.

    Args:
        sent: what each node was sent.
        updates: what each node that replied sent back.
    """
    silent = {n: Update(n, reason="it did not reply") for n in sent if n not in updates}
    members: dict[int, list[Update]] = defaultdict(list)
    for node, update in {**updates, **silent}.items():
        members[id(sent[node].state) if node in sent else 0].append(update)
    states = {id(one.state): one.state for one in sent.values()}
    return [Group(states.get(key, {}), tuple(some)) for key, some in members.items()]


def with_metrics(metrics: MetricRecord | None, added: Mapping[str, float]) -> MetricRecord | None:
    """Return a strategy's metrics with ours added; its own are not overwritten.

    Args:
        metrics: the metrics of the strategy, if it has any.
        added: our metrics by name; if there are none, the strategy's are returned unchanged.
    """
    if not added:
        return metrics
    held = MetricRecord() if metrics is None else metrics
    for name, value in added.items():
        held.setdefault(name, value)
    return held
