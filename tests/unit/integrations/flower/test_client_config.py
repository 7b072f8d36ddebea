"""The client's local training, read from a round's config."""

from __future__ import annotations

from flwr.app import ConfigRecord, RecordDict

import softleak as sl
from softleak.core.share import UNKNOWN
from softleak.guard.flower.guard import local_training


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
