"""Normal matrices of one Jacobian with many weights."""

from __future__ import annotations

import pytest
import torch

from softleak.numerics import least_squares as weighted_grams
from softleak.numerics.least_squares import WeightedGrams, gram_of, inverse_trace

SIZES = (70, 12, 0, 130)
N = 20


@pytest.fixture(scope="module")
def jacobian():
    return torch.randn(N, sum(SIZES), generator=torch.Generator().manual_seed(0))


def weights(*values: float) -> torch.Tensor:
    return torch.cat([torch.full((s,), v).double() for s, v in zip(SIZES, values, strict=True)])


def expected(jacobian, weight):
    return (jacobian.double() * weight) @ jacobian.double().T


def close(found, true) -> bool:
    return float((found - true).norm()) <= 1e-5 * float(true.norm())


@pytest.mark.parametrize("memory", [0, 4 * N * N, 1 << 20])
@pytest.mark.parametrize("light", [0, 3, 60, 130])
def test_any_weights_make_their_normal_matrix(jacobian, memory, light):
    grams = WeightedGrams(jacobian, SIZES, memory)
    weight = weights(2.0, 0.5, 1.0, 300.0)
    weight[len(weight) - light :] = 1e-3  # whether they are added to or subtracted from the rest
    weight[5:8] = 0.0
    found = grams(weight)
    assert found.dtype is torch.double
    assert close(found, expected(jacobian, weight))
    assert torch.equal(found, found.T)


def test_gram_matrices_are_computed_once(jacobian, monkeypatch):
    grams, computed = WeightedGrams(jacobian, SIZES), []
    grams(weights(1.0, 1.0, 1.0, 1.0))
    monkeypatch.setattr(
        weighted_grams, "gram_of", lambda a: computed.append(a.shape[1]) or gram_of(a)
    )
    for k in range(1, 4):
        weight = weights(k, 3.0 * k, 1.0, 5.0)
        assert close(grams(weight), expected(jacobian, weight))
    assert computed == [12] * 3  # only that of the group which is too small to be kept


def test_subtracting_what_dominates_a_group_is_avoided(jacobian):
    """Where a few columns are nearly all of a group, their difference would have no digits."""
    large = jacobian.clone()
    large[:, :3] *= 1e6
    weight = weights(1.0, 1.0, 1.0, 1.0)
    weight[:3] = 0.0
    assert close(WeightedGrams(large, SIZES)(weight), expected(large, weight))


def test_squares_of_small_gradients_do_not_vanish(jacobian):
    small = jacobian.clone()
    small[:, :70] *= 1e-25
    weight = weights(1.0, 1.0, 1.0, 1.0)
    weight[:70] = 1e50
    assert close(WeightedGrams(small, SIZES)(weight), expected(jacobian, weights(1, 1, 1, 1)))


@pytest.mark.parametrize("n", [7, 40])
def test_blocks_make_no_difference(monkeypatch, n):
    monkeypatch.setattr(weighted_grams, "BLOCK", 16)
    a = torch.randn(n, 60, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(gram_of(a), a @ a.T, atol=1e-4)
    matrix = gram_of(a.double())
    true = float(torch.linalg.inv(matrix).diagonal().sum())
    assert inverse_trace(matrix, 0.0) == pytest.approx(true, rel=1e-4)


def test_a_matrix_that_rounding_left_indefinite_has_a_trace():
    matrix = torch.diag(torch.tensor([4.0, 2.0, -1e-5])).double()
    assert inverse_trace(matrix.clone(), 1e-7) == pytest.approx(1 / (1e-4 - 1e-5), rel=0.02)
    with pytest.raises(torch.linalg.LinAlgError):
        inverse_trace(-matrix, 1e-7)
