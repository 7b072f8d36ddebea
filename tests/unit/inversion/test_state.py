from __future__ import annotations

from dataclasses import replace

import torch

from softleak.inversion.steps import LayerState, combined
from tests.unit.inversion.examples import normal


def curved(precision: torch.Tensor | None = None, measurements: int | None = None) -> LayerState:
    curvature = torch.tensor([0.0, 1, -2, 3, 0, 1]).double()
    return LayerState(
        normal(6), torch.full((6,), 0.2).double(), normal(6), 0.1 * torch.ones(6), curvature, 0.5,
        precision, measurements, error_reduction=3.0,
    )  # fmt: skip


def test_two_measurements_are_combined_as_least_squares_would():
    a, b = normal(5, seed=1), normal(5, seed=2)
    a_error, b_error = 0.1 + normal(5, seed=3).abs(), 0.1 + normal(5, seed=4).abs()
    value, error = combined(a, a_error, b, b_error)
    for i in range(len(a)):
        rows = torch.stack([1 / a_error[i], 1 / b_error[i]])[:, None]
        right = torch.stack([a[i] / a_error[i], b[i] / b_error[i]])[:, None]
        torch.testing.assert_close(torch.linalg.lstsq(rows, right).solution[0, 0], value[i])
        torch.testing.assert_close((rows.T @ rows)[0, 0].rsqrt(), error[i])
    assert bool((error <= torch.minimum(a_error, b_error)).all())


def test_an_exact_measurement_outweighs_any_other():
    one = torch.ones(1).double()
    value, error = combined(one, 0 * one, 5 * one, one)
    assert float(value) == 1.0
    assert float(error) < 1e-150


def test_an_error_of_the_value_moves_delta_along_its_curvature():
    state = curved()
    expected = torch.tensor([0.1, 0.05**0.5, 0.17**0.5, 0.37**0.5, 0.1, 0.05**0.5]).double()
    torch.testing.assert_close(state.whole_delta_error(), expected, rtol=1e-6, atol=0)


def test_an_unknown_value_leaves_a_delta_that_does_not_follow_it():
    state = curved()
    unknown = torch.where(state.curvature == 0, torch.inf, 0.2).double()
    state = replace(state, error=unknown)
    assert state.whole_delta_error().isfinite().all()


def test_independent_errors_keep_the_total_and_drop_the_correlations():
    state = curved(torch.eye(6).double())
    found = state.with_independent_errors()
    assert found.precision is None
    assert not found.curvature.any()
    assert torch.equal(found.whole_delta_error(), state.whole_delta_error())
    assert torch.equal(found.value, state.value)


def test_the_precision_of_averages_is_kept():
    """Averages cannot be written as separate errors of their entries."""
    state = curved(torch.eye(6).double(), measurements=2)
    assert state.with_independent_errors().precision is state.precision


def test_another_shape_and_back_changes_nothing():
    state = curved(torch.eye(6).double(), measurements=2)
    shaped = state.reshape((1, 2, 3))
    assert shaped.value.shape == shaped.curvature.shape == (1, 2, 3)
    back = shaped.reshape((6,))
    for name in ("value", "error", "precision", "delta_error"):
        assert torch.equal(getattr(back, name), getattr(state, name))
    for name in ("delta", "curvature"):
        assert torch.equal(getattr(back, name), getattr(state, name))
    assert back.error_reduction == 3.0
    assert back.scale_error == 0.5
