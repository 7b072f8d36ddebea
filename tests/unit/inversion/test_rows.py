"""The rows of a convolution and their normal matrix, against autograd."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from softleak.inversion.conv.rows import Rows, add_blocks, gradient_rows, normal_matrix
from tests.unit.inversion.examples import CONVOLUTIONS, exact_rows, normal

LAYERS = CONVOLUTIONS[:5]


def correlated(rows: Rows) -> Rows:
    """The same rows with a precision matrix."""
    m = rows.z.numel()
    root = torch.eye(m).double() + 0.3 * normal(m, m, seed=5) / m**0.5
    return replace(rows, precision=root.T @ root)


def residuals(rows: Rows, x: Tensor) -> Tensor:
    """All misfits in units of their errors."""
    off, gradient = rows.misfits(x)
    if rows.precision is None:
        forward = off.flatten() / rows.z_error.flatten()
    else:
        forward = torch.linalg.cholesky(rows.precision).T @ off.flatten()
    return torch.cat([forward, gradient.flatten(), -x / rows.prior_size])


@pytest.mark.parametrize("is_correlated", [False, True])
@pytest.mark.parametrize("options", LAYERS, ids=str)
def test_the_normal_matrix_is_that_of_the_dense_jacobian(options, is_correlated):
    rows, x = exact_rows(**options)
    rows = replace(correlated(rows) if is_correlated else rows, prior_size=3.0)
    jacobian = torch.autograd.functional.jacobian(lambda v: residuals(rows, v), x)
    torch.testing.assert_close(normal_matrix(rows, x), jacobian.T @ jacobian)


@pytest.mark.parametrize("is_correlated", [False, True])
def test_the_slope_is_that_of_the_squared_misfit(is_correlated):
    """Away from the solution too, if δ does not move with the output."""
    rows, x = exact_rows(curved=False, kernel_size=3, padding=1)
    rows = replace(correlated(rows) if is_correlated else rows, prior_size=3.0)
    v = (x + normal(len(x), seed=3)).requires_grad_()
    squares = residuals(rows, v).square().sum()
    (gradient,) = torch.autograd.grad(squares, v)
    v = v.detach()
    torch.testing.assert_close(rows.slope(v, x), -gradient / 2)
    ridge = float((v / 3).square().sum())
    assert rows.squared_misfit(v) == pytest.approx(float(squares.detach()) - ridge)


def test_the_slope_vanishes_at_an_input_that_meets_all_rows():
    rows, x = exact_rows(kernel_size=3, padding=1)
    assert float(rows.slope(x, x).abs().max()) < 1e-12
    assert rows.squared_misfit(x) < 1e-24


@pytest.mark.parametrize("options", LAYERS, ids=str)
def test_the_diagonal_is_that_of_the_normal_matrix(options):
    rows, x = exact_rows(curved=False, **options)
    torch.testing.assert_close(rows.normal_diagonal(), normal_matrix(rows, x).diagonal())


def test_gradients_see_every_channel_by_the_same_rows():
    rows, x = exact_rows(curved=False, kernel_size=3, padding=1)
    seen = gradient_rows(rows)  # (Co, k, H·W)
    predicted = torch.einsum("okp,cp->ock", seen, x.view(2, -1)).flatten(1)
    torch.testing.assert_close(predicted, (rows.g / rows.g_error)[:, :-1])


def test_enough_rough_steps_solve_rows_that_do_not_bend():
    rows, x = exact_rows(outputs=8, curved=False, kernel_size=3, padding=1)
    torch.testing.assert_close(rows.rough_solution(200), x, rtol=1e-6, atol=1e-6)
    few, more = ((rows.rough_solution(steps) - x).norm() for steps in (2, 20))
    assert float(more) < float(few)


def test_rows_with_an_infinite_error_are_not_counted():
    rows, _ = exact_rows(kernel_size=3, padding=1)
    m, gradients = rows.z.numel(), rows.g.numel()
    assert rows.count == m + gradients
    hidden = rows.z_error.clone()
    hidden[0] = torch.inf
    assert replace(rows, z_error=hidden).count == m - hidden[0].numel() + gradients
    averages = replace(correlated(rows), measurements=7)
    assert averages.count == 7 + gradients


def test_blocks_are_added_along_the_diagonal():
    blocks, matrix = normal(3, 2, 2), normal(6, 6)
    found = matrix.clone()
    add_blocks(found, blocks)
    torch.testing.assert_close(found, matrix + torch.block_diag(*blocks))


@pytest.mark.parametrize("curved", [False, True])
def test_the_normal_product_is_that_with_the_normal_matrix(curved):
    rows, x = exact_rows(curved=curved, kernel_size=3, padding=1)
    v = normal(x.numel(), seed=5)
    torch.testing.assert_close(rows.normal_product(v, x), normal_matrix(rows, x) @ v)
