"""Rows that hardly determine a convolution, or only by averages."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import softleak as sl


def narrow(activation: nn.Module, channels: int, kernel: int, groups: int = 1) -> nn.Sequential:
    """Of inputs (3, 12, 12): the first layer has hardly more rows than unknowns, or fewer."""
    way = {"stride": 2, "padding": kernel // 2}
    return nn.Sequential(
        nn.Conv2d(3, channels, kernel, **way), activation,
        nn.Conv2d(channels, channels, kernel, groups=groups, **way), activation,
        nn.Flatten(), nn.Linear(9 * channels, 10),
    ).eval()  # fmt: skip


NARROW = {
    "hardly more rows": lambda: narrow(nn.Sigmoid(), 4, 5, groups=2),
    "fewer rows": lambda: narrow(nn.Tanh(), 6, 3),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rows", NARROW)
def test_what_no_row_sees_is_neither_called_determined_nor_predicted_well(rows, seed):
    torch.manual_seed(seed)
    model, x = NARROW[rows](), torch.randn(3, 12, 12)
    share = sl.capture(model, x, 3)
    inversion = sl.invert(model, share, sl.recover_label(model, share))
    true = (inversion.input - x).square().mean().sqrt()
    predicted = inversion.error.square().mean().sqrt()
    assert float(true) < 3 * float(predicted)
    assert not inversion.determined or float(true) < 1e-2


@pytest.mark.parametrize("seed", range(3))
def test_averages_that_overlap_are_passed(seed):
    torch.manual_seed(seed)
    halves = {"kernel_size": 5, "stride": 2, "padding": 2}
    model = nn.Sequential(
        nn.Conv2d(3, 12, **halves), nn.Tanh(), nn.Conv2d(12, 12, **halves), nn.Tanh(),
        nn.Conv2d(12, 12, 5, padding=2), nn.AvgPool2d(3, 2, 1), nn.Flatten(), nn.Linear(48, 10),
    ).eval()  # fmt: skip
    x = 4 * torch.rand(3, 16, 16) - 2
    share = sl.capture(model, x, torch.distributions.Dirichlet(torch.ones(10)).sample())
    inversion = sl.invert(model, share, sl.recover_label(model, share))
    true = (inversion.input - x).square().mean().sqrt()
    assert float(true) < 1e-5
    assert float(true) < 3 * float(inversion.error.square().mean().sqrt())
