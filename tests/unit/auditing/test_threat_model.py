from __future__ import annotations

import pytest

from softleak.cli.audit import _options
from softleak.cli.options import Request
from softleak.core.knowledge import Knowledge
from softleak.core.share import LocalTraining
from softleak.present.advice import attacker_knowledge


@pytest.mark.parametrize(
    ("knowledge", "words"),
    [
        (Knowledge(), "not stated; other factors and signs are considered"),
        (Knowledge(is_gradient=True), "not stated; other factors are considered"),
        (Knowledge(scale="known"), "known"),
        (Knowledge(scale="unknown", lr=0.1), "unknown; any positive factor is considered"),
        (Knowledge(lr=0.1), "learning rate 0.1, as stated; other factors are considered as well"),
        (Knowledge(client=LocalTraining(lr=0.1)), "as the local training stated below leaves it"),
    ],
)
def test_the_scale_is_what_was_said_of_it(knowledge, words):
    assert dict(attacker_knowledge(knowledge))["Scale of the update"] == words


def test_the_learning_rate_of_the_command_line_is_known():
    assert _options(Request(lr=0.1)).knowledge.lr == 0.1
