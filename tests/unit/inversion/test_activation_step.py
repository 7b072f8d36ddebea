from __future__ import annotations

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.inversion.steps import ActivationStep, LayerState, inverse_of

MODULES = [
    nn.Sigmoid(), nn.Tanh(), nn.LeakyReLU(0.2), nn.ELU(0.7), nn.Softplus(2.0), nn.ReLU(),
    nn.SELU(), nn.CELU(0.7), nn.Softsign(), nn.LogSigmoid(),
]  # fmt: skip
NOTHING = sl.GradientShare({})


def known(value: torch.Tensor, error: float = 1e-12) -> LayerState:
    delta = torch.ones_like(value)
    return LayerState.uncoupled(value, torch.full_like(value, error), delta, 0 * delta)


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_the_way_back_is_the_inverse_and_the_chain_rule(module):
    a = torch.linspace(-3, 3, 40, dtype=torch.double, requires_grad=True)
    y = module(a)
    (slope,) = torch.autograd.grad(y.sum(), a)
    back = ActivationStep("phi", inverse_of(module)).back(known(y.detach()), NOTHING)[0]
    torch.testing.assert_close(back.delta, slope)
    finite = back.error.isfinite()
    torch.testing.assert_close(back.value[finite], a.detach()[finite])
    assert finite.all() or isinstance(module, nn.ReLU)


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_delta_bends_as_the_second_derivative(module):
    a = torch.linspace(-2.9, 3, 40, dtype=torch.double, requires_grad=True)
    y = module(a)
    (slope,) = torch.autograd.grad(y.sum(), a, create_graph=True)
    (curvature,) = (
        torch.autograd.grad(slope.sum(), a) if slope.requires_grad else (torch.zeros_like(a),)
    )
    back = ActivationStep("phi", inverse_of(module)).back(known(y.detach()), NOTHING)[0]
    torch.testing.assert_close(back.curvature, curvature)


def test_a_better_value_moves_the_tangent():
    """A saturated output says little of the input, until something else does."""
    a = torch.tensor([0.5, 14.0], dtype=torch.double)
    y = torch.sigmoid(a) + torch.tensor([0.0, 1e-6], dtype=torch.double)
    step = ActivationStep("phi", inverse_of(nn.Sigmoid()))
    back = step.back(known(y, 1e-6), NOTHING)
    # The first point is one error from the end of the range, and the value a step beyond.
    assert float(back[0].value[1]) == pytest.approx(14.8, abs=0.1)
    moved = back[0].moved(a + 2)
    assert moved is not None
    assert abs(float(moved.value[1]) - 16) <= 1.01
    assert moved.moved(a + 2.0001) is None


def test_what_a_relu_cut_off_is_not_known():
    back = ActivationStep("relu", inverse_of(nn.ReLU())).back(
        known(torch.tensor([0.0, 1e-13, 0.5], dtype=torch.double)), NOTHING
    )[0]  # fmt: skip
    assert back.error.isinf().tolist() == [True, True, False]
    assert back.delta.tolist() == [0.0, 0.0, 1.0]


def test_errors_grow_where_the_slope_is_small():
    y = torch.tensor([0.5, 0.999999], dtype=torch.double)
    back = ActivationStep("sigmoid", inverse_of(nn.Sigmoid())).back(known(y, 1e-9), NOTHING)[0]
    assert back.error[0] == pytest.approx(4e-9, rel=1e-3)
    assert back.error[1] > 1e-4


@pytest.mark.parametrize("module", [nn.GELU(), nn.SiLU(), nn.MaxPool2d(2)])
def test_others_are_not_claimed(module):
    assert inverse_of(module) is None
