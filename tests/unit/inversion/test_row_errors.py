"""What misfits and ridges say of a solution's errors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from softleak.inversion.conv.layer import held_by_rows, misfit, ridge_part, with_unseen
from tests.unit.inversion.examples import exact_rows, normal


def test_the_ridge_part_is_the_largest_eigenvalue():
    root = normal(12, 12)
    ridge = 0.1 + normal(12, seed=1).abs()
    N = root @ root.T + ridge.diag()
    scaled = ridge.sqrt()[:, None] * torch.linalg.inv(N) * ridge.sqrt()
    expected = float(torch.linalg.eigvalsh(scaled).max())
    found = ridge_part(lambda v: torch.linalg.solve(N, v), ridge, torch.ones(12).double(), 200)
    assert found == pytest.approx(expected, rel=1e-6)
    assert 0 < found < 1


def test_the_ridge_holds_all_of_a_direction_that_no_row_sees():
    rows, ridge = normal(11, 12), torch.ones(12).double()
    N = rows.T @ rows + ridge.diag()
    found = ridge_part(lambda v: torch.linalg.solve(N, v), ridge, normal(12, seed=1), 50)
    assert found == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("factor", [0.5, 1.0, 4.0])
def test_misfits_tell_how_much_larger_errors_are_than_expected(factor):
    rows, x = exact_rows((8, 8), 12, curved=False, kernel_size=3, padding=1)
    noisy = replace(
        rows,
        z=rows.z + factor * rows.z_error * normal(*rows.z.shape, seed=7),
        g=rows.g + factor * rows.g_error * normal(*rows.g.shape, seed=8),
    )
    solution = noisy.rough_solution(300)
    residual, scale = misfit(noisy, solution)
    assert scale == residual == pytest.approx(factor, rel=0.1)
    assert misfit(rows, x) == (pytest.approx(0, abs=1e-9), 0.1)


def test_few_spare_rows_do_not_make_errors_smaller():
    rows, x = exact_rows(outputs=1, curved=False, kernel_size=3, padding=1)
    assert misfit(rows, x)[1] == 1.0


def test_a_lift_counts_as_much_as_the_input_may_be_large():
    rows, _ = exact_rows(kernel_size=3, padding=1)
    rows = replace(rows, prior_size=10.0)
    variance = torch.full((4,), 1e-4).double()
    seen = with_unseen(variance, rows, torch.zeros(4).double())
    assert torch.equal(seen, variance)
    only_the_lift = torch.full((4,), 1e4).double()  # then the variance is one over the lift
    unseen = with_unseen(1 / only_the_lift, rows, only_the_lift)
    torch.testing.assert_close(unseen.sqrt(), torch.full((4,), 10.0).double(), rtol=1e-4, atol=0)


@pytest.mark.parametrize(("size", "held"), [(1e-3, True), (1e3, False)])
def test_rows_hold_a_direction_unless_the_ridge_does(size, held):
    root, ridge = normal(12, 12), torch.full((12,), size).double()
    covariance = torch.linalg.inv(root @ root.T + 12 * torch.eye(12).double() + ridge.diag())
    error = covariance.diagonal().sqrt()[None]
    assert held_by_rows(lambda v: covariance @ v, ridge, error, 50, largest=0.5) is held
