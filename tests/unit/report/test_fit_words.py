"""What people see of a fit: contradictions first, and nothing assumed that the numbers refute."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from softleak.audit.leaks import Leak
from softleak.core.fit import Bearing, Explanation, Fit, Hypothesis, Topic
from softleak.core.knowledge import Knowledge
from softleak.core.loss import BinaryCrossEntropy
from softleak.core.results import Recovery, Status, tags_in_words
from softleak.core.vocabulary import State
from softleak.present.advice import attacker_knowledge
from softleak.present.fit import REMEDIES, fit_rows, in_a_word, remedies
from softleak.present.page import tiles


def broken(topic, explanation, number=None):
    return Fit.of([
        Hypothesis(Topic.STEPS, Bearing.HOLDS),
        Hypothesis(topic, Bearing.CONTRADICTED, explanation, number),
    ])  # fmt: skip


WEIGHTS = broken(Topic.WEIGHTS, Explanation.OTHER_WEIGHTS, 40.0)
FOUND = Recovery(Status.UNIQUE, "", label=torch.eye(3)[0])


def test_what_is_contradicted_comes_first_and_what_holds_last():
    rows = fit_rows(WEIGHTS)
    assert [row["slug"] for row in rows] == ["contradicted", *["open"] * 6, "holds"]
    assert rows[0]["instead"] == "other weights"
    assert rows[0]["number"] == "misfit 40"
    assert in_a_word(WEIGHTS) == "other weights"


@pytest.mark.parametrize("explanation", REMEDIES)
def test_what_to_do_is_said_once_for_every_contradiction(explanation):
    fit = broken(Topic.LOSS, explanation, 1.0)
    assert list(remedies([fit, fit])) == [REMEDIES[explanation]]


@pytest.mark.parametrize(
    ("fit", "knowledge", "gone"),
    [
        (WEIGHTS, Knowledge(), "these weights"),
        (broken(Topic.NOISE, Explanation.ABSENT, 10.0), Knowledge(noise=10.0), "as declared"),
        (broken(Topic.SCALE, Explanation.OTHER_SCALE, 2.0), Knowledge(scale="known"), "factor"),
        (broken(Topic.STEPS, Explanation.OTHER_STEPS), Knowledge(), "of one sample"),
        (broken(Topic.LOSS, Explanation.OTHER_LOSS), Knowledge(), "cross-entropy"),
        (broken(Topic.COMPRESSION, Explanation.PRUNED, 0.9), Knowledge(), "no noise"),
    ],
)
def test_nothing_is_assumed_that_the_update_contradicts(fit, knowledge, gone):
    usual = " ".join(knowledge.assumptions(FOUND))
    said = " ".join(knowledge.assumptions(replace(FOUND, fit=fit)))
    assert gone in usual
    assert gone not in said


def test_the_loss_is_that_of_the_answer():
    shown = Fit.of([Hypothesis(Topic.LOSS, Bearing.HOLDS, Explanation.BCE)])
    tags = replace(FOUND, loss=BinaryCrossEntropy(), fit=shown)
    assert "binary cross-entropy" in Knowledge().assumptions(tags)[0]
    known = dict(attacker_knowledge(Knowledge(), tags))
    assert known["Loss"] == "binary cross-entropy of several labels, as the numbers show"
    other = replace(FOUND, fit=broken(Topic.LOSS, Explanation.OTHER_LOSS))
    assert "contradicts" in dict(attacker_knowledge(Knowledge(), other))["Loss"]


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ([0, 1, 0, 1], "has 2 of 4: class 1, class 3"),
        ([0, 0, 0], "has none of 3"),
        ([0.9, 0.1], "has 1 of 2: class 0 (smoothed by 0.10)"),
    ],
)
def test_several_labels_are_listed(label, words):
    assert tags_in_words(torch.tensor(label)) == words
    tags = replace(FOUND, label=torch.tensor(label), loss=BinaryCrossEntropy())
    assert words in repr(tags)


def test_a_tile_says_that_the_update_contradicts_what_was_stated():
    made = tiles(lambda leak, state: int((leak, state) == (Leak.LABEL, State.CONTRADICTED)), 1)
    assert [tile["contradicted"] for tile in made] == [1, 0, 0, 0, 0]
    assert made[0]["untried"] == 1
