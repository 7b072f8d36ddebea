"""The official quickstart's settings: log, metrics and page say what was proved; the guard acts."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord

from examples.flower.quickstart import LR, Client, guard, monitor, network
from softleak.audit import Leak
from softleak.core.vocabulary import State
from softleak.guard.flower import Action
from tests.unit.integrations.flower.clients import Nodes, context, instruction

NODES = [21, 22]
ONE_STEP, TWO_STEPS = Client(0, 32), Client(1, 40)
SINGLE = ("label", "class", "feature", "input")


def asked(node: int = 1):
    return instruction(node, network().state_dict(), lr=LR)


def repeatable(*_) -> np.random.Generator:
    return np.random.default_rng(0)


def metrics(message) -> dict:
    return dict(message.content.metric_records["metrics"])


@pytest.fixture
def watched(tmp_path, caplog):
    """A round of two clients, the second of which takes two steps: the metrics of the monitor."""
    made = monitor(tmp_path)
    state = ArrayRecord(network().state_dict())
    sent = made.configure_train(1, state, ConfigRecord({"lr": LR}), Nodes(NODES))
    by_node = {message.metadata.dst_node_id: message for message in sent}
    clients = zip(NODES, (ONE_STEP, TWO_STEPS), strict=True)
    with caplog.at_level(logging.WARNING, "softleak"):
        replies = [client.train(by_node[node], context(node)) for node, client in clients]
        _, said = made.aggregate_train(1, replies)
    return dict(said)


@pytest.mark.usefixtures("watched")
def test_the_log_has_the_classes_as_a_leak_and_the_rest_as_not_attacked(tmp_path):
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    first, second = sorted(lines, key=lambda line: line["node"])
    for line, client in ((first, ONE_STEP), (second, TWO_STEPS)):
        assert line["leaks"] == ["composition"]
        assert line["states"] == {
            "composition": State.LEAKED.value, **dict.fromkeys(SINGLE, State.NOT_ATTACKED.value)
        }  # fmt: skip
        assert set(line["classes_present"]) == set(client.classes)
        assert "gives away which classes are in it" in line["verdict"]
        assert "Not attacked: label, class, feature and input" in line["verdict"]


@pytest.mark.usefixtures("watched")
def test_counts_are_claimed_of_one_step_and_of_no_more(tmp_path):
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    first, second = sorted(lines, key=lambda line: line["node"])
    _, y = ONE_STEP.images()
    true = y.bincount(minlength=10).tolist()
    assert first["class_counts_estimated"] == true
    within = zip(first["class_counts_at_least"], true, first["class_counts_at_most"], strict=True)
    assert all(low <= n <= high for low, n, high in within)
    assert second["class_counts_estimated"] is None
    assert "it is not one plain step" in second["verdict"]


def test_clients_share_the_images_of_a_file(tmp_path):
    pack, count = tmp_path / "images.npz", 7
    x = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    np.savez(pack, x=x, y=np.arange(count))
    dealt = [Client(number, pack=pack, clients=2).images() for number in range(2)]
    assert [y.tolist() for _, y in dealt] == [[0, 2, 4, 6], [1, 3, 5]]
    assert all(float(images.min()) >= -1 and float(images.max()) <= 1 for images, _ in dealt)


def test_as_many_images_as_the_quickstart_has_are_the_embedded_ones_again():
    few, many = Client(0, 40), Client(0, 100)
    (x, y), (again, classes) = few.images(), many.images()
    assert len(again) == len(classes) == 100
    assert bool((again[:40] == x).all())
    assert classes.tolist() == [*y.tolist(), *y.tolist(), *y[:20].tolist()]
    # A mirrored and shifted image has the same pixels at other places.
    assert bool((again[40:80].flatten(1).sort(1).values == x.flatten(1).sort(1).values).all())
    assert not bool((again[40:80] == x).flatten(1).all(1).all())


def test_the_metrics_count_it_and_have_no_zero_for_what_was_not_attacked(watched):
    said = watched
    assert said["softleak-composition"] == 1.0
    assert said["softleak-composition-not-attacked"] == 0.0
    for name in SINGLE:
        assert f"softleak-{name}" not in said
        assert said[f"softleak-{name}-not-attacked"] == len(NODES)


@pytest.mark.usefixtures("watched")
def test_the_page_says_it_in_red_and_grey_and_nothing_in_green(tmp_path):
    page = (tmp_path / "index.html").read_text()
    body = page[page.index("<main") :]
    assert "Of 2 updates, 2 gave away which classes are in them." in page
    assert "Not attacked: label and input." in page
    assert body.count("tile tile-leak") == 1
    assert body.count("tile tile-untried") == len(SINGLE)
    assert "tile-quiet" not in body
    assert "airplane, dog" in body


@pytest.mark.usefixtures("watched")
def test_the_server_is_told_at_once(caplog):
    said = " ".join(record.getMessage() for record in caplog.get_records("setup"))
    assert "node 21" in said
    assert "class 0, class 5, proved" in said


def test_the_guard_told_to_stop_it_sends_noise_behind_which_no_class_is_proved(caplog):
    with caplog.at_level(logging.WARNING, "softleak"):
        sent = guard(Action.DEFEND, repeatable)(asked(), context(), ONE_STEP.train)
    said = metrics(sent)
    assert said["guard-composition"] == said["guard-defended"] == 1.0
    assert said["guard-noise"] > 0.0
    assert "guard-input" not in said  # it is not told to stop inputs, so it does not attack them
    assert said["guard-label-not-attacked"] == 1.0
    assert "Sent with noise" in caplog.text
    again = guard(Action.WARN)(asked(), context(), lambda *_: sent)
    assert metrics(again)["guard-composition"] == 0.0


def test_the_guard_told_to_refuse_it_does():
    sent = guard(Action.REFUSE)(asked(), context(), ONE_STEP.train)
    assert sent.has_error()
    assert "gives away: composition" in sent.error.reason


def test_a_guard_not_told_to_stop_it_says_that_it_went_out(caplog):
    made = guard(Action.REFUSE, leak=Leak.INPUT)
    with caplog.at_level(logging.WARNING, "softleak"):
        sent = made(asked(), context(), ONE_STEP.train)
    assert not sent.has_error()
    assert "what this guard is not told to stop: composition" in caplog.text
    assert metrics(sent)["guard-composition"] == metrics(sent)["guard-input-not-attacked"] == 1.0
