"""Places where a wrong label was once called UNIQUE, or a right one could be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import softleak as sl
from softleak.audit.metrics import distance_to_set, label_error
from softleak.core.errors import HeadNotFound, LabelError, ShareError
from softleak.labels.certify import count_equations
from softleak.paper.data import smooth


def dirichlet(classes: int) -> torch.Tensor:
    return torch.distributions.Dirichlet(torch.ones(classes, dtype=torch.double)).sample()


@pytest.mark.parametrize("slope", [0.01, 0.2, 0.5])
def test_a_feature_of_one_sign_behind_a_leaky_relu(slope):
    proofs = 0
    for seed in range(20):
        torch.manual_seed(seed)
        body = nn.Linear(10, 4), nn.LeakyReLU(slope), nn.Linear(4, 5, bias=False)
        model, x, y = nn.Sequential(*body), torch.randn(10), dirichlet(5)
        with torch.no_grad():
            body[0].bias -= 5
        recovery = sl.recover_label(model, sl.capture(model, x, y))
        if recovery.status is sl.Status.UNIQUE:
            proofs += 1
            assert label_error(recovery, y) < 1e-3
    assert proofs >= 10  # all twenty are


@pytest.mark.parametrize(
    ("family", "equations"),
    [
        (sl.OneHot(), 5),
        (sl.Smoothed(), 4),
        (sl.Mixed(2), 4),
        (sl.Mixed(3), 3),
        (sl.SmoothedMixed(2), 3),
        (sl.AnyLabel(), 0),
    ],
)
def test_equations_are_counted(family, equations):
    label = smooth(2, 6, 0.3)
    assert count_equations(family, label[None]).tolist() == [equations]
    assert count_equations(family, smooth(2, 6, 0.0)[None]).tolist() == [equations]


@pytest.mark.parametrize(
    ("family", "classes"), [(sl.Smoothed(), 3), (sl.Mixed(2), 3), (sl.Mixed(3), 4), (None, 4)]
)
def test_no_more_equations_than_unknowns_prove_nothing(family, classes):
    for seed in range(20):
        torch.manual_seed(seed)
        head, x = nn.Linear(16, classes, bias=False).double(), torch.rand(16).double()
        y = torch.zeros(classes, dtype=torch.double)
        y[:2] = torch.tensor([0.99, 0.01])
        recovery = sl.recover_label(head, sl.capture(head, x, y), family=family, evidence=False)
        assert recovery.status is not sl.Status.UNIQUE
        assert recovery.status is sl.Status.NO_SOLUTION or "too few classes" in recovery.message


def test_with_unknown_scale_and_four_classes_a_segment_remains():
    for seed in range(20):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4))
        x, y = torch.randn(10), dirichlet(4)
        recovery = sl.recover_label(model, sl.capture(model, x, y).scaled(0.37), scale="unknown")
        assert recovery.status is sl.Status.AMBIGUOUS
        assert distance_to_set(recovery, y) < 1e-3


def test_evidence_that_fails_refutes():
    for seed in range(10):
        torch.manual_seed(seed)
        conv = nn.Conv2d(3, 12, 5, padding=2, stride=2)
        model = nn.Sequential(conv, nn.Sigmoid(), nn.Flatten(), nn.Linear(768, 10))
        share = sl.capture(model, torch.randn(3, 16, 16), dirichlet(10))
        altered = share.map(lambda name, g: g / 2 if name == "3.weight" else g)
        recovery = sl.recover_label(model, altered)
        assert recovery.status is not sl.Status.UNIQUE
        assert recovery.label is None or "disagree" in recovery.message


class Tempered(nn.Module):
    def __init__(self, power: float) -> None:
        super().__init__()
        self.linear, self.power = nn.Linear(10, 5), power

    def forward(self, x):
        return self.linear(x) * self.power


@pytest.mark.parametrize("name", [None, "linear"])
def test_a_head_whose_output_is_not_the_models_is_refused(name):
    model = Tempered(0.5)
    share = sl.capture(model, torch.randn(10), 1)
    for evidence in (True, False):
        with pytest.raises(HeadNotFound):
            sl.recover_label(model, share, head=name, evidence=evidence)


def test_a_log_softmax_behind_the_head_changes_nothing():
    model = nn.Sequential(nn.Linear(10, 5), nn.LogSoftmax(-1))
    y = dirichlet(5)
    recovery = sl.recover_label(model, sl.capture(model, torch.randn(10), y))
    assert label_error(recovery, y) <= recovery.error < 1e-4


def test_ties_at_the_top_leave_the_floor_alone():
    y = torch.tensor([0.28, 0.18, 0.18, 0.18, 0.18 - 2**-55], dtype=torch.double)
    torch.testing.assert_close(sl.SmoothedMixed(2).project(y), y, rtol=0, atol=1e-15)


def test_a_continuum_over_decades_holds_the_truth():
    head = nn.Linear(8, 6, bias=False)
    with torch.no_grad():
        head.weight[0] += 100
    for epsilon in (1e-3, 1e-2, 0.1, 0.5):
        y = smooth(0, 6, epsilon)
        share = sl.capture(head, torch.rand(8) + 0.5, y)
        recovery = sl.recover_label(head, share, family=sl.Smoothed(), evidence=False)
        assert recovery.status is sl.Status.AMBIGUOUS
        assert distance_to_set(recovery, y) < 1e-3
        assert label_error(recovery, y) <= recovery.error


def test_half_precision_in_one_layer_enters_the_error():
    for seed in range(30):
        torch.manual_seed(seed)
        model = nn.Linear(12, 3)
        x, y = torch.rand(12), dirichlet(3)
        share = sl.capture(model, x, y).map(lambda n, g: g.half() if n == "bias" else g)
        recovery = sl.recover_label(model, share)
        assert label_error(recovery, y) <= recovery.error


@pytest.mark.parametrize("family", ["onehot", sl.OneHot, 3])
def test_what_is_no_family_is_named(trained, shares, family):
    from softleak.paper.data import Hard

    (share,), _ = shares(Hard(), 1)
    with pytest.raises(LabelError, match=r"such as Smoothed\(\)"):
        sl.recover_label(trained, share, family=family, evidence=False)


def test_arrays_and_lists_are_taken_and_nonsense_is_named():
    model = nn.Linear(4, 3)
    plain = sl.capture(model, torch.ones(4), torch.tensor([0.5, 0.25, 0.25]))
    other = sl.capture(model, np.ones(4), [0.5, 0.25, 0.25])
    torch.testing.assert_close(plain["weight"], other["weight"])
    for nonsense in (None, "cat", 0.7, [0.5, 0.25, 0.2509]):
        with pytest.raises(LabelError):
            sl.capture(model, torch.ones(4), nonsense)
    with pytest.raises(ShareError, match="sparse"):
        sl.GradientShare({"w": torch.eye(3).to_sparse()})
    with pytest.raises(ShareError, match="rounding"):
        sl.GradientShare({"w": torch.eye(3)}, rounding={"w": float("nan")})
    with pytest.raises(LabelError, match="whole number"):
        sl.Mixed(2.5)  # type: ignore[arg-type]


@pytest.mark.once
def test_a_head_of_zeros_is_no_trap():
    head = nn.Linear(4, 6, bias=False)
    nn.init.zeros_(head.weight)
    share = sl.capture(head, torch.rand(4), smooth(1, 6, 0.2))
    for scale in ("known", "unknown"):
        recovery = sl.recover_label(head, share, evidence=False, scale=scale)
        assert recovery.status in (sl.Status.UNIQUE, sl.Status.AMBIGUOUS, sl.Status.NO_SOLUTION)
