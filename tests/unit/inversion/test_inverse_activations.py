"""Every activation's inverse, slope and curvature, against autograd, over its whole range."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from softleak.inversion.steps import RANGE_MARGIN, inverse_of

SMOOTH = [
    nn.Sigmoid(), nn.Tanh(), nn.Softplus(), nn.Softplus(2.0), nn.Softsign(), nn.LogSigmoid(),
    nn.ELU(), nn.ELU(0.7), nn.SELU(), nn.CELU(), nn.CELU(0.7), nn.LeakyReLU(0.2),
]  # fmt: skip


@pytest.mark.parametrize("module", SMOOTH, ids=str)
def test_forward_inverse_slope_and_curvature_agree_with_the_module(module):
    phi = inverse_of(module)
    a = torch.linspace(-4.05, 4, 60, dtype=torch.double, requires_grad=True)  # zero is a kink
    y = module(a)
    (slope,) = torch.autograd.grad(y.sum(), a, create_graph=True)
    curvature = torch.zeros_like(a)
    if slope.requires_grad:
        (curvature,) = torch.autograd.grad(slope.sum(), a)
    y, a, slope = y.detach(), a.detach(), slope.detach()
    torch.testing.assert_close(phi.forward(a), y)
    torch.testing.assert_close(phi.inverse(y), a)
    torch.testing.assert_close(phi.slope(y), slope)
    torch.testing.assert_close(phi.curvature(y), curvature)


@pytest.mark.parametrize("module", [*SMOOTH, nn.ReLU()], ids=str)
def test_outputs_stay_within_the_stated_range(module):
    phi = inverse_of(module)
    y = module(torch.linspace(-50, 50, 101, dtype=torch.double))
    assert bool(((y >= phi.low) & (y <= phi.high)).all())
    assert phi.cuts == isinstance(module, nn.ReLU)


@pytest.mark.parametrize("module", SMOOTH, ids=str)
def test_the_inverse_is_finite_a_margin_from_the_ends(module):
    phi = inverse_of(module)
    ends = [
        end + side * RANGE_MARGIN
        for end, side in ((phi.low, 1), (phi.high, -1))
        if abs(end) < torch.inf
    ]
    inside = torch.tensor([*ends, 0.1 if phi.high > 0 else -0.1], dtype=torch.double)
    assert phi.inverse(inside).isfinite().all()


def test_a_softplus_with_a_low_threshold_is_not_claimed():
    """Above the threshold PyTorch's softplus is straight, and has a jump there."""
    assert inverse_of(nn.Softplus(threshold=5.0)) is None
    assert inverse_of(nn.Softplus(threshold=30.0)) is not None


@pytest.mark.parametrize("module", [nn.LeakyReLU(-0.1), nn.LeakyReLU(0.0), nn.PReLU(), nn.GELU()])
def test_activations_that_are_not_one_to_one_are_not_claimed(module):
    assert inverse_of(module) is None
