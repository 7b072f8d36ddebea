"""Shares that are not one clean sample's: which explanation is given."""

from __future__ import annotations

import torch
from torch import nn

import softleak as sl


def test_zeros_among_several_samples_are_no_pruning():
    """Behind many steps of sure predictions, small entries of an update are rounded to zero."""
    torch.manual_seed(0)
    model = nn.Linear(40, 6)
    missed = torch.tensor([[0.4, -0.4, 0.0, 0, 0, 0], [0.0, 0, 0.3, -0.5, 0.2, 0]])
    features = torch.rand(2, 40)
    features[0, :8], features[1, 8:12] = 0, 0
    share = sl.GradientShare({"weight": missed.T @ features})
    found = sl.recover_label(model, share)
    assert found.status is sl.Status.NOT_SINGLE
    assert found.samples == 2
    assert "noise" not in found.message.replace("rounding and noise", "")
