from __future__ import annotations

import pytest
import torch

from softleak.inversion.conv.layer import least_ratio
from tests.unit.inversion.examples import normal


@pytest.mark.parametrize("least", [1.0, 0.5, 1e-3])
def test_the_direction_that_lost_most_is_found(least):
    A = normal(90, 60)
    N = A.T @ A
    L = torch.linalg.cholesky(N)
    q = torch.linalg.qr(normal(60, 60, seed=1))[0]
    part = torch.linspace(0.95, 1.05, 60, dtype=torch.double)
    part[7] = least
    M = L @ (q * part) @ q.T @ L.T  # the eigenvalues of N⁻¹ M are these parts
    inverse = torch.linalg.inv(N)
    found = least_ratio(lambda v: M @ v, lambda v: inverse @ v, N.diagonal(), 12)
    assert found == pytest.approx(min(least, 0.95), rel=0.02, abs=1e-3)


def test_a_matrix_that_is_the_same_has_lost_nothing():
    N = torch.diag(torch.logspace(-6, 6, 20, dtype=torch.double))
    found = least_ratio(lambda v: N @ v, lambda v: v / N.diagonal(), N.diagonal(), 12)
    assert found == pytest.approx(1.0)


def test_numbers_that_are_not_finite_keep_nothing():
    one = torch.ones(5, dtype=torch.double)
    assert least_ratio(lambda v: v * torch.nan, lambda v: v, one, 12) == 0.0
    assert least_ratio(lambda v: v, lambda v: v * torch.nan, one, 12) == 0.0
