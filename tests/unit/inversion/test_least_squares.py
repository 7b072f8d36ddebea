"""The dense solver and conjugate gradients, against PyTorch's own solvers."""

from __future__ import annotations

import pytest
import torch

from softleak.numerics.least_squares import (
    Factored,
    conjugate_gradients,
    drawn,
    solved,
)
from tests.unit.inversion.examples import normal


def problem(rows: int = 60, unknowns: int = 25, condition: float = 1e3) -> torch.Tensor:
    """A matrix whose columns differ in size up to its condition number."""
    sizes = torch.logspace(0, -torch.tensor(condition).log10().item(), unknowns).double()
    return normal(rows, unknowns) * sizes


@pytest.mark.parametrize("condition", [1.0, 1e4, 1e8])
def test_the_solution_is_that_of_lstsq(condition):
    """Columns of any size: the matrix is scaled before it is factored."""
    A, b = problem(condition=condition), normal(60, seed=1)
    found = Factored.of(A.T @ A).solve(lambda x: A.T @ (b - A @ x), torch.zeros(25).double())
    expected = torch.linalg.lstsq(A, b[:, None], driver="gelsd").solution[:, 0]
    assert found.determined
    torch.testing.assert_close(found.value * A.norm(dim=0), expected * A.norm(dim=0))


def test_refinement_on_the_rows_keeps_the_digits_that_squaring_loses():
    base = normal(60, 25)
    A = base.clone()
    A[:, 1] = A[:, 0] + 1e-6 * base[:, 1]
    x = normal(25, seed=1)
    b = A @ x
    factored = Factored.of(A.T @ A)
    direct = factored.inverse(A.T @ b)
    refined = factored.solve(lambda v: A.T @ (b - A @ v), torch.zeros(25).double()).value
    assert float((refined - x).norm()) < 1e-3 * float((direct - x).norm())


def test_errors_are_the_root_of_the_inverse_diagonal():
    """64 draws tell each to about a tenth, and all together far better."""
    A = problem()
    exact = torch.linalg.inv(A.T @ A).diagonal().sqrt()
    found = Factored.of(A.T @ A).solve(lambda x: 0 * x, torch.zeros(25).double()).error
    ratio = found / exact
    assert float(ratio.min()) > 0.6
    assert float(ratio.max()) < 1.5
    assert 0.9 < float(ratio.mean()) < 1.1


def test_predicted_errors_cover_the_true_ones():
    """Of normal errors 68.3 % are within one standard error; 40 draws of 25 unknowns."""
    A, x = problem(), normal(25, seed=1)
    factored, inside = Factored.of(A.T @ A), []
    for seed in range(40):
        b = A @ x + normal(60, seed=seed + 2)
        found = factored.solve(lambda v, b=b: A.T @ (b - A @ v), torch.zeros(25).double())
        inside.append((found.value - x).abs() < found.error)
    assert 0.6 < float(torch.stack(inside).double().mean()) < 0.76


def test_a_direction_that_no_row_sees_is_reported():
    A = problem()
    A[:, 3] = A[:, 4]
    found = Factored.of(A.T @ A)
    solution = found.solve(lambda x: -(A.T @ (A @ x)), torch.zeros(25).double())
    assert not solution.determined
    assert solution.condition > 1e12


def test_a_diagonal_is_lifted_no_further_than_needed():
    matrix = torch.ones(4, 4).double() - 1e-10 * torch.eye(4).double()
    found = Factored.of(matrix, (0.0, 1e-6, 1.0))
    torch.testing.assert_close(found.lifted, torch.full((4,), 1e-6).double(), rtol=1e-6, atol=0)
    assert not Factored.of(torch.eye(4).double()).lifted.any()


def test_draws_have_the_inverse_for_covariance():
    A = problem(condition=10)
    factor = torch.linalg.cholesky(A.T @ A)
    draws, exact = drawn(factor, 20000), torch.linalg.inv(A.T @ A)
    covariance = draws @ draws.T / draws.shape[1]
    assert float((covariance - exact).norm() / exact.norm()) < 0.05
    assert torch.equal(drawn(factor, 5), drawn(factor, 5))


def test_both_triangles_are_solved():
    A, right = problem(condition=10), normal(25, 3)
    torch.testing.assert_close(
        solved(torch.linalg.cholesky(A.T @ A), right), torch.linalg.solve(A.T @ A, right)
    )


@pytest.mark.parametrize("preconditioned", [False, True])
def test_conjugate_gradients_solve_in_as_many_steps_as_unknowns(preconditioned):
    A, right = problem(condition=10), normal(25, seed=1)
    N = A.T @ A
    diagonal = N.diagonal() if preconditioned else torch.ones(25).double()
    found = conjugate_gradients(lambda v: N @ v, right, lambda r: r / diagonal, 60)
    torch.testing.assert_close(found, torch.linalg.solve(N, right), rtol=1e-6, atol=1e-6)


def test_with_the_exact_inverse_one_step_is_enough():
    A, right = problem(condition=10), normal(25, seed=1)
    N = A.T @ A
    found = conjugate_gradients(lambda v: N @ v, right, lambda r: torch.linalg.solve(N, r), 1)
    torch.testing.assert_close(found, torch.linalg.solve(N, right))


def test_conjugate_gradients_stop_within_the_tolerance():
    A, right = problem(condition=10), normal(25, seed=1)
    N, calls = A.T @ A, []

    def product(v: torch.Tensor) -> torch.Tensor:
        calls.append(v)
        return N @ v

    enough = float(right @ torch.linalg.solve(N, right)) + 1
    inverse = torch.linalg.inv(N)
    none = conjugate_gradients(product, right, lambda r: inverse @ r, 10, enough)
    assert not none.any()
    assert not calls
