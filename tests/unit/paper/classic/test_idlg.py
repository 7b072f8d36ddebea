from __future__ import annotations

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.paper import data
from softleak.paper.classic import ClassicOutcome, idlg


def test_exact_on_hard_labels(lenet, draw):
    for sample in draw(data.Hard(), 10):
        result = idlg(lenet, sl.capture(lenet, sample.x, sample.y))
        assert result.converged
        assert torch.equal(result.label, sample.y.double())
        assert result.row == int(sample.y.argmax())


def test_signs_of_the_feature_do_not_matter():
    model = nn.Sequential(nn.Linear(8, 30), nn.Tanh(), nn.Linear(30, 5, bias=False))
    for index in range(5):
        assert idlg(model, sl.capture(model, torch.randn(8), index)).row == index


def test_several_against_several_is_undecided(lenet, draw):
    outcomes = set()
    for sample in draw(data.Mixup(0.4, 0.6), 5):
        result = idlg(lenet, sl.capture(lenet, sample.x, sample.y))
        outcomes.add(result.outcome)
        assert result.label is None
    assert outcomes == {ClassicOutcome.UNDECIDED}


def test_two_rows_are_undecided():
    model = nn.Linear(6, 2, bias=False)
    result = idlg(model, sl.capture(model, torch.randn(6), 1))
    assert result.outcome is ClassicOutcome.UNDECIDED


def test_saturated_softmax_is_undecided():
    model = nn.Linear(3, 4, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[500.0], [0.0], [0.0], [0.0]]).expand(4, 3))
    share = sl.capture(model, torch.ones(3), 2)
    assert int((share["weight"] != 0).any(1).sum()) == 2
    assert idlg(model, share).outcome is ClassicOutcome.UNDECIDED


def test_zero_gradient(lenet, silent):
    assert idlg(lenet, silent).outcome is ClassicOutcome.ZERO_GRADIENT


@pytest.mark.parametrize("index", range(4))
def test_rows_without_gradient_take_no_side(index):
    delta = torch.tensor([0.3, 0.7, 0.0, 0.0]).roll(index)
    delta[(index + 2) % 4] = -1.0
    model = nn.Linear(3, 4, bias=False)
    share = sl.GradientShare({"weight": torch.outer(delta, torch.tensor([1.0, -2.0, 0.5]))})
    assert idlg(model, share).row == (index + 2) % 4
