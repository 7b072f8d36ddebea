"""Fewer bits and fewer entries: what is still recovered, and nothing wrong is called UNIQUE."""

from __future__ import annotations

import pytest
import torch

import softleak as sl
from softleak.audit import Options, audit
from softleak.audit.metrics import label_error
from softleak.core.fit import Explanation, Topic
from softleak.defenses import Cast, Int8, Prune, Sign
from softleak.paper import data, models

EXACT = 1e-3
QUICK = Options(inputs=False, views=False)


@pytest.fixture(scope="module")
def case(draw, trained):
    torch.manual_seed(0)
    nets = []
    for model in (trained, models.mlp(3072, (128,)).eval()):
        head = sl.Head.of(model)
        relations = sl.probe(model, (3, 32, 32), head=head)
        for kind in (data.Smoothing(), data.Hard()):
            samples = draw(kind, 3)
            nets.append((model, head, relations, samples))
    return nets


def recoveries(case, defense):
    for model, head, relations, samples in case:
        sent = [defense(sl.capture(model, s.x, s.y)) for s in samples]
        for evidence in (False, relations):
            found = sl.recover_labels(
                model, sent, family=sl.Smoothed(), head=head, evidence=evidence
            )
            yield from zip(found, (s.y for s in samples), strict=True)


def assert_no_wrong_proof(found) -> None:
    for recovery, y in found:
        if recovery.status is sl.Status.UNIQUE:
            assert label_error(recovery, y) < EXACT


def classes_right(found) -> float:
    return sum(r.class_index == int(y.argmax()) for r, y in found) / len(found)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_give_away_the_label_to_within_their_rounding(case, dtype):
    found = list(recoveries(case, Cast(dtype)))
    assert_no_wrong_proof(found)
    assert classes_right(found) == 1
    assert all(label_error(recovery, y) <= recovery.error for recovery, y in found)


def test_eight_bits_give_away_the_class(case):
    found = list(recoveries(case, Int8()))
    assert_no_wrong_proof(found)
    assert classes_right(found) > 0.8
    errors = [label_error(r, y) for r, y in found if r.label is not None]
    assert sorted(errors)[len(errors) // 2] < 0.05


@pytest.mark.once
@pytest.mark.parametrize("kept", [0.1, 0.01])
def test_pruning_is_called_that_and_not_noise(case, kept):
    found = list(recoveries(case, Prune(kept)))
    assert_no_wrong_proof(found)
    assert all(r.fit[Topic.COMPRESSION].explanation is Explanation.PRUNED for r, _ in found)
    assert not any(r.noise or r.status is sl.Status.PROBABLE for r, _ in found)


@pytest.mark.parametrize("kept", [0.1, 0.01])
def test_the_signs_of_what_pruning_leaves_are_classes_of_samples(case, kept):
    for model, _, _, samples in case:
        for s in (one for one in samples if float(one.y.max()) == 1):
            report = audit(model, Prune(kept)(sl.capture(model, s.x, s.y)), options=QUICK)
            held = {int(s.y.argmax())}
            assert set(report.composition.present) <= set(report.composition.raised) <= held


@pytest.mark.once
def test_signs_prove_nothing(case):
    found = list(recoveries(case, Sign()))
    assert not any(recovery.status is sl.Status.UNIQUE for recovery, _ in found)
