"""The client's local training, read from a round's config, and the preview of its own batch."""

from __future__ import annotations

import torch
from flwr.app import ConfigRecord, RecordDict

import softleak as sl
from softleak.core.share import UNKNOWN
from softleak.guard.flower import BatchPreview, Question
from softleak.guard.flower.guard import local_training
from tests.unit.integrations.flower.clients import SHAPE, client, context, instruction, network


def content(**settings) -> RecordDict:
    return RecordDict({"config": ConfigRecord(settings)})


def test_the_config_says_how_clients_train():
    held = content(**{"lr": 0.1, "momentum": 0.9, "batch-size": 32, "local-epochs": 1})
    found = local_training(held, 0.1, None)
    assert str(found) == "epochs=1,batch_size=32,lr=0.1,momentum=0.9"


def test_a_rate_alone_is_one_plain_step():
    assert local_training(content(lr=0.1), 0.1, None) is None


def test_what_was_said_counts_before_the_config():
    said = sl.Client(lr=0.5, steps=3)
    found = local_training(content(momentum=0.9), None, said)
    assert (found.steps, found.momentum, found.lr) == (3, 0.0, 0.5)


def test_an_unknown_rate_stays_unknown():
    assert local_training(content(momentum=0.9), None, None).lr is UNKNOWN


def test_a_preview_says_what_one_step_on_the_own_batch_proves():
    torch.manual_seed(0)
    x, y = torch.rand(4, *SHAPE), torch.tensor([0, 0, 1, 1])
    mod = BatchPreview(network(), lambda _: (x, y), question=Question(input_shape=SHAPE))
    reply = mod(instruction(1), context(), client())
    found = dict(reply.content.metric_records["metrics"])
    assert found["preview-samples"] == 4
    assert found["preview-classes"] == 2
    assert 0 <= found["preview-proved"] <= 2
    assert found["preview-step-seconds"] <= found["preview-seconds"]
    assert found["num-examples"] == 1  # the client trained as it would have
