from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy import FedAvg

from softleak.audit import Leak
from softleak.guard.flower import AuditEngine, LeakageMonitor, Question, Unfit
from tests.unit.integrations.flower.clients import (
    CLASSES,
    LR,
    SHAPE,
    Nodes,
    batch,
    instruction,
    network,
    reply,
    trained,
)

NODES = [11, 12, 13, 14]


def strategy() -> FedAvg:
    return FedAvg(fraction_evaluate=0.0)


def monitor(**options) -> LeakageMonitor:
    given = {"lr": LR, "question": Question(input_shape=SHAPE), **options}
    return LeakageMonitor(strategy(), network(), **given)


def sent_by(watched, nodes=NODES, **config) -> dict[int, Message]:
    """The messages of a round, by node."""
    state = ArrayRecord(network().state_dict())
    made = watched.configure_train(1, state, ConfigRecord(config), Nodes(nodes))
    return {message.metadata.dst_node_id: message for message in made}


def honest(message: Message, seed: int, samples: int = 1, steps: int = 1) -> Message:
    state = trained(network().state_dict(), samples, seed, steps)
    return reply(message, ArrayRecord(state), samples)


def mean_of(replies) -> dict[str, torch.Tensor]:
    arrays, _ = strategy().aggregate_train(1, replies)
    return arrays.to_torch_state_dict()


def test_every_label_of_a_round_is_recovered_and_nothing_is_changed():
    watched = monitor()
    replies = [honest(m, node) for node, m in sent_by(watched).items()]
    arrays, metrics = watched.aggregate_train(1, replies)
    (audit,) = watched.rounds
    for client in audit.clients:
        _, y = batch(1, client.node)
        assert client.report.label.class_index == int(y)
    assert audit.count(Leak.LABEL) == len(NODES)
    assert metrics["softleak-label"] == 1.0
    assert metrics["softleak-audited"] == len(NODES)
    plain = mean_of(replies)
    assert all(torch.equal(arrays.to_torch_state_dict()[name], plain[name]) for name in plain)


@pytest.mark.parametrize("config", [{"lr": LR}, {}])
def test_the_learning_rate_is_the_configs_or_unknown(config):
    watched = monitor(lr=None)
    watched.aggregate_train(1, [honest(m, n) for n, m in sent_by(watched, **config).items()])
    scales = {client.report.label.recovery.scale for client in watched.rounds[0].clients}
    assert watched.rounds[0].count(Leak.LABEL) == len(NODES)
    assert (scales == {1.0}) == bool(config)


def nan(message: Message) -> Message:
    state = {name: tensor * float("nan") for name, tensor in network().state_dict().items()}
    return reply(message, ArrayRecord(state))


def wrong_shape(message: Message) -> Message:
    state = network().state_dict()
    return reply(message, ArrayRecord(state | {"1.weight": torch.zeros(7, 3)}))


def another_architecture(message: Message) -> Message:
    return reply(message, ArrayRecord({"conv.weight": torch.zeros(4, 3, 5, 5)}))


def nothing(message: Message) -> Message:
    return reply(message, None)


def empty(message: Message) -> Message:
    return reply(message, ArrayRecord())


def rubbish(message: Message) -> Message:
    held = {n: Array("float32", (3,), "numpy.ndarray", b"\x00") for n in network().state_dict()}
    return reply(message, ArrayRecord(held))


def error(message: Message) -> Message:
    return Message(Error(2, "out of memory"), reply_to=message)


BAD = {
    nan: "NaN",
    wrong_shape: "shape",
    another_architecture: "other names",
    nothing: "one record of arrays",
    empty: "no arrays",
    rubbish: "cannot be read",
    error: "out of memory",
}


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.__name__)
def test_a_bad_client_does_not_disturb_the_round_and_is_named(bad, tmp_path, caplog):
    watched = monitor(unfit=Unfit.LEAVE_OUT, folder=tmp_path)
    sent = sent_by(watched)
    good = [honest(sent[node], node) for node in NODES[1:]]
    with caplog.at_level(logging.WARNING, "softleak"):
        arrays, metrics = watched.aggregate_train(1, [bad(sent[11]), *good])
    plain = mean_of(good)
    assert all(torch.equal(arrays.to_torch_state_dict()[name], plain[name]) for name in plain)
    assert metrics["softleak-refused"] == 1.0
    assert metrics["softleak-label"] == 1.0
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    (named,) = [line for line in lines if not line["audited"]]
    assert named["node"] == "11"
    assert BAD[bad] in named["reason"]
    assert "node 11" in caplog.text
    page = (tmp_path / "index.html").read_text()
    assert "node 11" in page


def test_all_bad_clients_at_once_leave_a_round_without_an_answer(tmp_path):
    watched = monitor(unfit=Unfit.LEAVE_OUT, folder=tmp_path)
    sent = sent_by(watched)
    assert watched.aggregate_train(1, [nan(message) for message in sent.values()])[0] is None
    assert len(watched.rounds[0].audited) == 0
    page = (tmp_path / "index.html").read_text()
    assert "tile tile-untried" in page
    assert "tile tile-quiet" not in page  # nothing was attacked: that is not green


def test_unless_told_to_it_passes_everything_on():
    watched = monitor()
    sent = sent_by(watched)
    replies = [another_architecture(sent[11]), *(honest(sent[n], n) for n in NODES[1:])]
    with pytest.raises(InconsistentMessageReplies):
        strategy().aggregate_train(1, replies)
    with pytest.raises(InconsistentMessageReplies):
        watched.aggregate_train(1, replies)
    assert len(watched.rounds[0].audited) == 3


def test_a_client_that_does_not_reply_is_named():
    watched = monitor()
    sent = sent_by(watched)
    watched.aggregate_train(1, [honest(sent[n], n) for n in NODES[:3]])
    (silent,) = [c for c in watched.rounds[0].clients if c.report is None]
    assert (silent.node, silent.reason) == (14, "it did not reply")


def test_a_stranger_does_not_disturb_the_round():
    watched = monitor()
    sent = sent_by(watched)
    other = honest(instruction(99), 1)
    watched.aggregate_train(1, [*(honest(m, n) for n, m in sent.items()), other])
    (named,) = [c for c in watched.rounds[0].clients if c.report is None]
    assert named.node == 99


def test_batches_and_local_steps_are_called_that():
    watched = monitor()
    sent = sent_by(watched)
    replies = [honest(sent[11], 5), honest(sent[12], 5, 4), honest(sent[13], 5, 1, steps=3)]
    watched.aggregate_train(1, replies)
    one, several, steps, _ = watched.rounds[0].clients
    assert one.report.composition.present == ()
    _, y = batch(4, 5)
    found = several.report.composition
    assert found.samples == min(4, CLASSES - 1)
    assert found.present
    assert set(found.present) <= set(y.tolist())
    assert several.leaks == {Leak.COMPOSITION}
    assert found.counts is None
    assert "cannot be checked on this network" in several.words  # it has a sigmoid
    assert steps.report.several
    assert steps.leaks <= {Leak.COMPOSITION, Leak.CLASS}  # of one sample, so of one class
    assert "no label is claimed" in steps.words


def test_another_model_than_the_federations_is_reported_and_disturbs_nothing():
    watched = LeakageMonitor(strategy(), torch.nn.Linear(4, 3), lr=LR)
    replies = [honest(m, node) for node, m in sent_by(watched).items()]
    arrays, metrics = watched.aggregate_train(1, replies)
    assert arrays is not None
    assert metrics["softleak-audited"] == 0.0
    assert "not those of this Linear" in watched.rounds[0].clients[0].reason


def test_a_list_of_arrays_without_names_is_understood():
    watched = monitor()
    plain = [tensor.numpy() for tensor in network().state_dict().values()]
    made = watched.configure_train(1, ArrayRecord(plain), ConfigRecord(), Nodes(NODES))
    replies = []
    for message in made:
        state = trained(network().state_dict(), 1, message.metadata.dst_node_id)
        arrays = [np.asarray(tensor) for tensor in state.values()]
        replies.append(reply(message, ArrayRecord(arrays)))
    watched.aggregate_train(1, replies)
    assert watched.rounds[0].count(Leak.LABEL) == len(NODES)


def test_a_folder_that_cannot_be_written_does_not_end_the_training(tmp_path, caplog):
    (tmp_path / "taken").write_text("")
    watched = monitor(folder=tmp_path / "taken")
    replies = [honest(m, node) for node, m in sent_by(watched).items()]
    arrays, metrics = watched.aggregate_train(1, replies)
    assert arrays is not None
    assert metrics["softleak-label"] == 1.0
    assert "could not be written" in caplog.text


def test_inputs_wait_until_the_run_is_over():
    watched = monitor(question=Question(2, SHAPE))
    watched.aggregate_train(1, [honest(m, n) for n, m in sent_by(watched).items()])
    assert watched.rounds[0].count(Leak.INPUT) == 0
    watched.finish()
    assert watched.rounds[0].count(Leak.INPUT) == 2
    for client in watched.rounds[0].clients:
        if Leak.INPUT in client.leaks:
            x, _ = batch(1, client.node)
            assert float((client.report.input.pixels - x[0]).abs().max()) < 1e-3


@pytest.mark.slow
def test_on_ray_the_findings_are_the_same():
    pytest.importorskip("ray")
    there, here = monitor(engine=AuditEngine.RAY), monitor()
    for watched in (there, here):
        watched.aggregate_train(1, [honest(m, n) for n, m in sent_by(watched).items()])
    (far,), (near,) = there.finish(), here.finish()
    key = lambda client: client.node  # noqa: E731
    for a, b in zip(sorted(far.clients, key=key), sorted(near.clients, key=key), strict=True):
        assert a.leaks == b.leaks
        assert torch.equal(a.report.label.recovery.label, b.report.label.recovery.label)
