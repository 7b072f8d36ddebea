"""Rows that hardly determine a convolution, or only by averages."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.inversion.conv import layer as solve
from softleak.inversion.conv.layer import solve_again, solve_thoroughly
from softleak.inversion.conv.rows import Rows
from tests.unit.inversion.examples import exact_rows, normal


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


def noisy_rows() -> Rows:
    """Rows of a convolution whose outputs determine its input, with errors as expected."""
    rows, _ = exact_rows(outputs=6, curved=False, kernel_size=3, padding=1)
    z_error = 1e-3 * rows.z_error
    noise = z_error * normal(*rows.z.shape, seed=5)
    return replace(rows, z=rows.z + noise, z_error=z_error, prior_size=10.0)


def test_rows_that_hardly_changed_are_solved_with_the_last_factorisation():
    rows = noisy_rows()
    factors = torch.linspace(0.9, 1.1, rows.z.numel(), dtype=torch.double).view_as(rows.z)
    last = solve_thoroughly(rows)
    shift = rows.forward(10 * last.error).view_as(rows.z)
    moved = replace(rows, z=rows.z + shift, z_error=rows.z_error * factors)
    anew = solve_thoroughly(moved)
    again = solve_again(moved, last)
    assert again is not None
    assert again.factored is last.factored
    before, after = (
        ((x - anew.value) / last.error).square().sum() for x in (last.value, again.value)
    )
    assert float(before) > 10  # squared distances in standard errors
    assert float(after) < solve.QUICK_TOLERANCE
    ratio = again.error / anew.error
    assert float(ratio.min()) > 0.8
    assert float(ratio.max()) < 1.25


def test_rows_that_changed_too_much_are_solved_anew(monkeypatch):
    rows = noisy_rows()
    last = solve_thoroughly(rows)
    spread = torch.logspace(-3, 3, rows.z.numel(), dtype=torch.double).view_as(rows.z)
    with monkeypatch.context() as few:
        few.setattr(solve, "QUICK_STARTS", 1)
        few.setattr(solve, "QUICK_STEPS", 1)
        assert solve_again(replace(rows, z_error=spread), last) is None
    assert solve_again(rows, replace(last, factored=None)) is None


def test_few_outputs_are_solved_in_single_precision_unless_that_is_too_coarse():
    options = {"size": (6, 6), "outputs": 1, "kernel_size": 5, "stride": 2, "padding": 2}
    rows, _ = exact_rows(curved=False, **options)
    assert rows.few_outputs
    kept, refused = (
        solve_thoroughly(replace(rows, z_error=error * rows.z_error, prior_size=prior))
        for error, prior in ((1.0, 0.1), (1e-6, 1e6))
    )
    assert kept.factored.normal.dtype is torch.float
    assert refused.factored.normal.dtype is torch.double
