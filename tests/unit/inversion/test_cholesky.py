"""Cholesky's method in place."""

from __future__ import annotations

import pytest
import torch

from softleak.numerics.least_squares import cholesky_in_place
from tests.unit.inversion.examples import normal


@pytest.mark.parametrize("size", [5, 512, 513, 1100])
def test_the_factor_is_that_of_the_lower_half(size):
    root = normal(size, size)
    matrix = root @ root.T + torch.eye(size).double()
    given = matrix.tril() + 7 * torch.ones_like(matrix).triu(1)  # nobody reads the upper half
    assert cholesky_in_place(given)
    torch.testing.assert_close(given.tril(), torch.linalg.cholesky(matrix))


@pytest.mark.parametrize("where", [0, 700, 1099])
@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_a_matrix_without_a_factor_is_told(where, value):
    matrix = torch.eye(1100).double()
    matrix[where, where] = value
    assert not cholesky_in_place(matrix)
