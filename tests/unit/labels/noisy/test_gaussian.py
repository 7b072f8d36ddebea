from __future__ import annotations

import math

import pytest
import torch

from softleak.labels.noisy.posterior import (
    even_points,
    normal_draws,
    sum_zero_covariance,
    sum_zero_part,
    weights_given,
    without_last_weight,
)


@pytest.mark.parametrize("classes", [3, 10, 50])
def test_normal_draws_have_the_exact_moments(classes):
    drawn = normal_draws(classes)
    assert torch.allclose(drawn.mean(0), torch.zeros(classes).double(), atol=1e-12)
    assert torch.allclose(drawn.T @ drawn / len(drawn), torch.eye(classes).double(), atol=1e-12)


@pytest.mark.parametrize("classes", [2, 7, 100])
def test_the_basis_spans_the_vectors_that_sum_to_zero(classes):
    basis = sum_zero_part(torch.eye(classes, dtype=torch.double))
    assert torch.allclose(basis.T @ basis, torch.eye(classes - 1).double(), atol=1e-13)
    assert torch.allclose(basis.sum(0), torch.zeros(classes - 1).double(), atol=1e-13)


def test_covariances_follow_their_vectors():
    rows = torch.randn(20, 4, dtype=torch.double)
    inner = sum_zero_part(rows)
    assert torch.allclose(sum_zero_covariance(rows.T @ rows), inner.T @ inner, atol=1e-10)


def test_weights_are_those_of_least_squares():
    A, r = torch.randn(2, 9, dtype=torch.double), torch.randn(9, dtype=torch.double)
    mean, root, misfit, volume = weights_given(A, r)
    exact = torch.linalg.lstsq(A.T, r[:, None]).solution[:, 0]
    assert torch.allclose(mean, exact, atol=1e-9)
    assert torch.allclose(root @ root.T, torch.linalg.inv(A @ A.T), atol=1e-9)
    assert float(misfit) == pytest.approx(float((r - exact @ A).square().sum()), rel=1e-9)
    mass = 2 * math.pi / math.sqrt(float(torch.linalg.det(A @ A.T)))
    assert float(volume) == pytest.approx(math.log(mass), abs=1e-9)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_last_weight_of_zero_leaves_the_problem_of_the_others(size):
    A, r = torch.randn(4, size, 9, dtype=torch.double), torch.randn(4, 9, dtype=torch.double)
    mean, root, misfit, _ = weights_given(A, r)
    face, face_root, more, volume = without_last_weight(mean, root)
    expected = weights_given(A[:, :-1], r)
    torch.testing.assert_close(face, expected[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(face_root @ face_root.mT, expected[1] @ expected[1].mT)
    torch.testing.assert_close(misfit + more, expected[2])
    torch.testing.assert_close(volume, expected[3])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_even_points_integrate_a_smooth_function(size):
    points = even_points(512, size)
    assert float(points.min()) > 0
    assert float(points.max()) < 1
    mean = float((2 * points).prod(-1).mean())
    assert mean == pytest.approx(
        1, abs=0.04
    )  # random points have a standard error of 0.026, 0.039, 0.052
