"""What must hold of any head and any label, not of some network."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import softleak as sl
from softleak.audit.metrics import distance_to_set, label_error
from softleak.core.factors import factor
from softleak.labels.curve import PseudoLabels
from softleak.paper.data import smooth

CLASSES, FEATURES = 8, 24
seeds = st.integers(0, 2**32 - 1)
properties = settings(max_examples=25, deadline=None)


def problem(seed: int, epsilon: float = 0.2) -> tuple[nn.Linear, Tensor, Tensor]:
    """A float64 head, a feature and a smoothed label."""
    torch.manual_seed(seed)
    head = nn.Linear(FEATURES, CLASSES, bias=bool(seed % 2)).double()
    x = torch.rand(FEATURES, dtype=torch.double) * 3
    return head, x, smooth(seed % CLASSES, CLASSES, epsilon)


def recover(head: nn.Linear, x: Tensor, y: Tensor) -> sl.Recovery:
    share = sl.capture(head, x, y).without("bias")
    return sl.recover_label(head, share, family=sl.Smoothed(), evidence=False)


@properties
@given(seeds, st.floats(-1.4, 1.4).filter(lambda t: abs(t) > 1e-3))
def test_theorem_1_entries_sum_to_one_for_every_scalar(seed, t):
    head, x, y = problem(seed)
    known = sl.Head.of(head)
    pseudo = PseudoLabels.of(known, factor(known, [sl.capture(head, x, y)]))
    labels, _ = pseudo.labels(torch.tensor([[t]], dtype=torch.double))
    assert abs(float(labels.sum()) - 1) < 1e-12


@properties
@given(seeds, st.floats(0, 0.5))
def test_the_round_trip_is_exact_in_float64(seed, epsilon):
    head, x, y = problem(seed, epsilon)
    recovery = recover(head, x, y)
    if recovery.status is sl.Status.UNIQUE:
        assert label_error(recovery, y) < 1e-12
        assert float((recovery.feature - x).norm() / x.norm()) < 1e-9
    else:
        assert recovery.status is sl.Status.AMBIGUOUS
        assert distance_to_set(recovery, y) < 1e-3


@properties
@given(seeds, st.permutations(range(CLASSES)))
def test_permuting_the_classes_permutes_the_label(seed, order):
    head, x, y = problem(seed)
    moved = nn.Linear(FEATURES, CLASSES, bias=head.bias is not None).double()
    with torch.no_grad():
        moved.weight.copy_(head.weight[list(order)])
        if head.bias is not None:
            moved.bias.copy_(head.bias[list(order)])
    plain, permuted = recover(head, x, y), recover(moved, x, y[list(order)])
    assert permuted.status is plain.status
    torch.testing.assert_close(permuted.label, plain.label[list(order)], rtol=0, atol=1e-12)


@properties
@given(seeds, st.floats(1e-3, 1e3))
def test_scaling_the_weights_down_and_the_feature_up_changes_nothing(seed, factor_):
    head, x, y = problem(seed)
    scaled = nn.Linear(FEATURES, CLASSES, bias=head.bias is not None).double()
    with torch.no_grad():
        scaled.weight.copy_(head.weight / factor_)
        if head.bias is not None:
            scaled.bias.copy_(head.bias)
    plain, other = recover(head, x, y), recover(scaled, factor_ * x, y)
    assert other.status is plain.status
    torch.testing.assert_close(other.label, plain.label, rtol=0, atol=1e-11)
    torch.testing.assert_close(other.feature, factor_ * plain.feature, rtol=1e-9, atol=0)


@properties
@given(seeds)
def test_whatever_row_the_paper_would_pick_the_answer_is_the_same(seed):
    """λ_r = 1/(t u_r): every row r with a gradient gives the same feature λ_r g_r."""
    head, x, y = problem(seed)
    share = sl.capture(head, x, y).without("bias")
    recovery = sl.recover_label(head, share, family=sl.Smoothed(), evidence=False)
    delta = head(x).detach().softmax(-1) - y
    for row, gradient in enumerate(share["weight"]):
        if abs(float(delta[row])) > 1e-6:
            scalar = 1 / float(delta[row])
            torch.testing.assert_close(scalar * gradient, recovery.feature, rtol=1e-7, atol=1e-9)


@properties
@given(seeds, st.lists(st.floats(0.01, 1), min_size=CLASSES, max_size=CLASSES))
def test_any_label_follows_from_the_bias(seed, weights):
    torch.manual_seed(seed)
    head = nn.Linear(FEATURES, CLASSES).double()
    x = torch.rand(FEATURES, dtype=torch.double)
    y = torch.tensor(weights, dtype=torch.double)
    y = y / y.sum()
    recovery = sl.recover_label(head, sl.capture(head, x, y))
    assert recovery.status is sl.Status.UNIQUE
    assert label_error(recovery, y) < 1e-12


@properties
@given(seeds, st.integers(2, 6))
def test_a_batch_is_never_taken_for_one_sample(seed, batch):
    torch.manual_seed(seed)
    head = nn.Linear(FEATURES, CLASSES, bias=False)
    shares = [
        sl.capture(head, torch.rand(FEATURES), torch.rand(CLASSES).softmax(0)) for _ in range(batch)
    ]
    G = sum(share["weight"] for share in shares) / batch
    recovery = sl.recover_label(head, sl.GradientShare({"weight": G}), evidence=False)
    assert recovery.status is sl.Status.NOT_SINGLE
    assert recovery.samples == batch
