from __future__ import annotations

import pytest
import torch

import softleak as sl
from softleak.audit.metrics import distance_to_set, label_error
from softleak.labels.curve import segment_end
from softleak.paper import data

KINDS = [
    (data.Smoothing(), sl.Smoothed()),
    (data.Mixup(), sl.Mixed(2)),
    (data.Hard(), sl.OneHot()),
    (data.Mixup(epsilon=0.1), sl.SmoothedMixed(2)),
]
FACTORS = (0.01, 0.3, 7.0, 100.0)


@pytest.mark.parametrize(("augmentation", "family"), KINDS)
@pytest.mark.parametrize("evidence", [True, False])
def test_any_factor(trained, shares, augmentation, family, evidence):
    captured, truth = shares(augmentation, len(FACTORS))
    scaled = [share.scaled(k) for share, k in zip(captured, FACTORS, strict=True)]
    found = sl.recover_labels(trained, scaled, family=family, evidence=evidence, scale="unknown")
    plain = sl.recover_labels(trained, captured)
    for recovery, exact, y, k in zip(found, plain, truth, FACTORS, strict=True):
        assert recovery.status is sl.Status.UNIQUE
        assert label_error(recovery, y) <= min(recovery.error, 1e-5)
        assert recovery.scale == pytest.approx(k, rel=1e-4)
        assert recovery.scalar == pytest.approx(exact.scalar, rel=1e-4)
        torch.testing.assert_close(recovery.feature, exact.feature, rtol=1e-4, atol=1e-6)


def test_of_an_arbitrary_label_the_feature_is_exact_and_a_segment_remains(trained, shares):
    captured, truth = shares(data.Dirichlet(), 4)
    scaled = [share.scaled(k) for share, k in zip(captured, FACTORS, strict=True)]
    plain = sl.recover_labels(trained, captured)
    found = sl.recover_labels(trained, scaled, scale="unknown")
    for recovery, exact, y in zip(found, plain, truth, strict=True):
        assert recovery.status is sl.Status.AMBIGUOUS
        assert distance_to_set(recovery, y) < 1e-3
        error = (recovery.feature - exact.feature).norm() / exact.feature.norm()
        assert error < 1e-5
        assert recovery.feature_error < 1e-5


def test_the_segment_ends_where_an_entry_turns_negative():
    p, u = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.5, 0.6, -1.1])
    assert float(segment_end(p, u)) == pytest.approx(0.5)
    y = p - 0.5 * u
    assert y.min() == pytest.approx(0.0, abs=1e-7)


def test_a_step_of_a_small_learning_rate_nobody_said_cuts_no_label_off(trained):
    """Rounding of the weights moves where entries turn negative: the truth lies beyond it."""
    before = {name: w.detach() for name, w in trained.named_parameters()}
    relations = sl.probe(trained, (3, 32, 32))
    for sample in list(data.samples(data.embedded(), data.Hard(), 10, 0, data.CIFAR10_NORM))[7:]:
        g = sl.capture(trained, sample.x, sample.y)
        after = {name: w - 0.01 * g[name] for name, w in before.items()}
        share = sl.GradientShare.from_update(before, after, lr=1.0)
        found = sl.recover_label(trained, share, evidence=relations, scale="unknown")
        assert distance_to_set(found, sample.y) < 5e-3
        assert label_error(found, sample.y) <= found.error
        assert found.status is not sl.Status.UNIQUE or label_error(found, sample.y) < 1e-3
