"""Fully connected layers from their gradients (§4.2), in float64 and under noise."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import softleak as sl
from softleak.inversion.steps import LayerState, Linear
from tests.unit.inversion.examples import normal, state

INPUTS, OUTPUTS = 50, 20
WEIGHT, X, DELTA = normal(OUTPUTS, INPUTS), normal(INPUTS, seed=1), normal(OUTPUTS, seed=2)


def share(noise: float = 0.0, seed: int = 0, bias: bool = False) -> sl.GradientShare:
    G, b = torch.outer(DELTA, X), DELTA.clone()
    G += noise * normal(OUTPUTS, INPUTS, seed=10 + seed)
    b += noise * normal(OUTPUTS, seed=1000 + seed)
    found = sl.GradientShare({"fc.weight": G, **({"fc.bias": b} if bias else {})})
    return found.expecting(noise) if noise else found


def above(delta: torch.Tensor, scale_error: float = 0.0) -> LayerState:
    known = state(torch.zeros(OUTPUTS).double(), delta=delta)
    return replace(known, scale_error=scale_error)


def test_the_input_and_its_derivative_are_exact():
    found = Linear("fc", WEIGHT, False).back(above(DELTA), share())
    torch.testing.assert_close(found[0].value, X, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(found[0].delta, DELTA @ WEIGHT)
    assert found[1].determined
    assert (found[1].rows, found[1].unknowns) == (OUTPUTS * INPUTS, INPUTS)


@pytest.mark.parametrize("rows", [1, 5, OUTPUTS])
def test_more_rows_give_a_smaller_error(rows):
    """With the rows of the largest |δ|, noise of size s leaves ``s/‖δ‖``."""
    noise, offs = 1e-3, []
    for seed in range(20):
        found = Linear("fc", WEIGHT, False, rows=rows).back(above(DELTA), share(noise, seed))
        offs.append(found[0].value - X)
    size = DELTA.abs().topk(rows).values.norm()
    rms = torch.stack(offs).square().mean().sqrt()
    assert float(rms * size / noise) == pytest.approx(1, rel=0.15)


def test_predicted_errors_cover_the_true_ones():
    """Of normal errors 68.3 % are within one standard error, 95.4 % within two."""
    ratios = []
    for seed in range(30):
        found = Linear("fc", WEIGHT, False).back(above(DELTA), share(1e-3, seed))[0]
        ratios.append((found.value - X).abs() / found.error)
    inside = torch.stack(ratios)
    assert 0.6 < float((inside < 1).double().mean()) < 0.85
    assert float((inside < 2).double().mean()) > 0.93


def test_without_a_bias_the_scale_of_delta_is_the_scale_of_the_input():
    found = Linear("fc", WEIGHT, False).back(above(1.01 * DELTA, 0.01), share())
    torch.testing.assert_close(found[0].value, X / 1.01)
    within = found[0].error / X.abs()
    assert bool((within > 0.009).all())
    assert found[0].scale_error == 0.01


def test_the_gradient_of_a_bias_is_delta_itself():
    found = Linear("fc", WEIGHT, True).back(above(1.01 * DELTA, 0.01), share(bias=True))
    torch.testing.assert_close(found[0].value, X, rtol=1e-12, atol=1e-12)
    assert found[0].scale_error < 1e-14


def test_where_delta_is_zero_nothing_is_known():
    zero = torch.zeros(OUTPUTS).double()
    silent = sl.GradientShare({"fc.weight": torch.zeros(OUTPUTS, INPUTS).double()})
    found = Linear("fc", WEIGHT, False).back(above(zero), silent)
    assert not found[1].determined
    assert found[1].condition == math.inf
    assert found[0].error.isinf().all()


def test_an_error_of_delta_becomes_an_error_of_the_derivative():
    off = torch.full((OUTPUTS,), 1e-2).double()
    known = LayerState.uncoupled(0 * off, 0 * off, DELTA, off)
    found = Linear("fc", WEIGHT, False).back(known, share())[0]
    true = torch.stack([(1e-2 * normal(OUTPUTS, seed=s)) @ WEIGHT for s in range(50)])
    ratio = float(true.square().mean().sqrt() / found.delta_error.square().mean().sqrt())
    assert 0.5 < ratio < 2
