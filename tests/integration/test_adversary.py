"""A sample of the adversarial suite: no wrong proof on a model or a share nobody tuned to."""

from __future__ import annotations

import warnings

import pytest

from benchmarks.adversary.judge import FAILURES
from benchmarks.adversary.labels import LABELS
from benchmarks.adversary.run import Alone, examine
from benchmarks.adversary.subject import Plan, Subject
from benchmarks.adversary.ways import WAYS
from benchmarks.adversary.zoo import ZOO

STRANGERS = (
    "ViT, trained", "DeiT with teacher", "Levit", "ResNet", "MobileViT",
    "rescaling subclass", "quantisation-aware head", "hook on the gradient", "head applied twice",
    "head of zeros", "temperature behind the head, no bias", "log-softmax, trained",
    "convolution, BatchNorm, ReLU, pool", "BatchNorm in train mode", "MLP, GELU", "2 classes",
    "4 classes, no head bias", "6 classes, GELU, no head bias, trained", "trained and loud",
    "GELU, no head bias, loud", "float64", "float16", "GRU", "experts before the head",
)  # fmt: skip
SPREAD = 10  # every model sees one way in ten, every way two models or three
RECIPES = {stranger.name: stranger for stranger in ZOO}


def plans(number: int) -> list[Plan]:
    """Some ways for the model of this number, each with another kind of label."""
    kinds = list(LABELS)
    return [
        Plan(way, kinds[(3 * index + number) % len(kinds)], 0)
        for index, way in enumerate(WAYS)
        if (index - number) % SPREAD == 0
    ]


@pytest.mark.parametrize("name", STRANGERS)
def test_no_proof_is_wrong_and_nothing_crashes(name):
    if RECIPES[name].group == "Hugging Face":
        pytest.importorskip("transformers", reason="needs the extra hf")
    chosen = plans(STRANGERS.index(name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        records = examine(Subject(RECIPES[name]), chosen, len(chosen))
    failed = [one for one in records if one.outcome in FAILURES]
    assert not failed
    assert not [one for one in records if one.alone is Alone.OTHER]


def test_the_sample_sees_every_way():
    seen = {plan.way.name for number in range(len(STRANGERS)) for plan in plans(number)}
    assert seen == {way.name for way in WAYS}
