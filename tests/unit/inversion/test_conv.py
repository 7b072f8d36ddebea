"""A convolution's input from its output and its gradients, beside the truth."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.core.errors import ShareError
from softleak.inversion.conv.layer import PRIOR_FACTOR, Conv
from softleak.inversion.conv.rows import Geometry
from softleak.inversion.steps import ActivationStep, LayerState, inverse_of
from tests.unit.inversion.examples import NO_GRADIENTS, conv_share, normal, state

SHAPE = (2, 6, 5)


def made(outputs: int = 12, **options: object) -> tuple[nn.Conv2d, Conv, torch.Tensor]:
    torch.manual_seed(0)
    layer = nn.Conv2d(2, outputs, 3, padding=1, **options).double()
    return layer, Conv("conv", layer, Geometry.of(layer, SHAPE[1:])), normal(*SHAPE)


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("options", [{}, {"groups": 2}, {"bias": False}], ids=str)
def test_the_input_and_its_derivative_are_those_of_autograd(options, quick):
    layer, conv, x = made(**options)
    x.requires_grad_()
    y = layer(x[None])[0]
    delta = normal(*y.shape, seed=1)
    (expected,) = torch.autograd.grad((y * delta).sum(), x, retain_graph=True)
    share = conv_share(layer, x.detach(), delta, noise=1e-7)
    step = replace(conv, quick=quick)
    found = step.back(state(y.detach(), 1e-9, delta), share)
    torch.testing.assert_close(found[0].value, x.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found[0].delta, expected)
    assert found[1].determined
    assert found[1].unknowns == x.numel()
    assert found[1].rows == y.numel() + sum(p.numel() for p in layer.parameters())
    assert (found[0].precision is None) == (quick or layer.groups > 1)


@pytest.mark.parametrize("quick", [False, True])
def test_predicted_errors_are_those_of_noise(quick):
    """The root mean square of error over predicted error is about one, in 12 draws of 60 pixels."""
    layer, conv, x = made()
    step = replace(conv, quick=quick)
    y = layer(x[None])[0].detach()
    delta, ratios = normal(*y.shape, seed=1), []
    for seed in range(12):
        noisy = y + 1e-3 * normal(*y.shape, seed=100 + seed)
        share = conv_share(layer, x, delta, noise=1e-2, seed=200 + 2 * seed)
        found = step.back(state(noisy, 1e-3, delta), share)[0]
        ratios.append((found.value - x) / found.error)
    assert 0.8 < float(torch.stack(ratios).square().mean().sqrt()) < 1.25


def test_the_precision_handed_down_is_the_inverse_covariance():
    layer, conv, x = made()
    y = layer(x[None])[0].detach()
    delta, costs = normal(*y.shape, seed=1), []
    for seed in range(12):
        noisy = y + 1e-3 * normal(*y.shape, seed=100 + seed)
        share = conv_share(layer, x, delta, noise=1e-2, seed=200 + 2 * seed)
        found = conv.back(state(noisy, 1e-3, delta), share)[0]
        off = (found.value - x).flatten()
        costs.append(float(off @ found.precision @ off) / len(off))
    assert 0.8 < sum(costs) / len(costs) < 1.25


def test_a_saturated_output_is_linearised_again_around_what_the_rows_say():
    """Gradients know the input; the outputs of a saturated tanh are far from their tangents."""
    layer, conv, x = made()
    layer.weight.data.mul_(8)
    z = layer(x[None])[0].detach()
    delta_above = normal(*z.shape, seed=1)
    y = torch.tanh(z)
    noisy = y + 1e-4 * normal(*z.shape, seed=2)
    step = ActivationStep("tanh", inverse_of(nn.Tanh()))
    above = step.back(state(noisy, 1e-4, delta_above), NO_GRADIENTS)
    share = conv_share(layer, x, delta_above * (1 - y.square()))
    fixed = conv.back(replace(above[0], moved=None), share)[0]
    moved = conv.back(above[0], share)[0]
    before, after = (float((f.value - x).norm()) for f in (fixed, moved))
    assert after < before / 20


def test_rows_that_say_nothing_leave_the_input_undetermined():
    layer, conv, x = made(outputs=1)
    y = layer(x[None])[0].detach()
    hidden = state(y, torch.inf, torch.zeros_like(y))
    zeros = {f"conv.{n}": torch.zeros_like(p) for n, p in layer.named_parameters()}
    found = conv.back(hidden, sl.GradientShare(zeros))
    assert not found[1].determined


def test_a_gradient_weighs_by_rounding_noise_and_the_error_of_delta():
    layer, conv, x = made()
    y = layer(x[None])[0].detach()
    delta = normal(*y.shape, seed=1)
    (clean,) = conv.rows(state(y, 1e-9, delta), conv_share(layer, x, delta))
    (noisy,) = conv.rows(state(y, 1e-9, delta), conv_share(layer, x, delta, noise=0.1))
    off = LayerState.uncoupled(y, 1e-9 + 0 * y, delta, 0.1 * torch.ones_like(y))
    (uncertain,) = conv.rows(off, conv_share(layer, x, delta))
    assert float(clean.g_error.max()) < 1e-12
    torch.testing.assert_close(noisy.g_error, torch.full_like(noisy.g, 0.1), rtol=1e-6, atol=0)
    positions = y[0].numel() ** 0.5
    expected = 0.1 * positions * clean.prior_size / PRIOR_FACTOR
    assert float(uncertain.g_error[0, 0]) == pytest.approx(expected)


def test_without_a_bias_its_column_says_nothing():
    layer, conv, x = made(bias=False)
    y = layer(x[None])[0].detach()
    (rows,) = conv.rows(state(y), conv_share(layer, x, torch.ones_like(y)))
    assert rows.g_error[:, -1].isinf().all()
    assert rows.g_error[:, :-1].isfinite().all()


@pytest.mark.parametrize("size", [0.01, 1.0, 100.0])
def test_the_prior_follows_the_size_of_the_input(size):
    layer, conv, x = made()
    y = layer(size * x[None])[0].detach()
    delta = normal(*y.shape, seed=1)
    (rows,) = conv.rows(state(y, 1e-9, delta), conv_share(layer, size * x, delta))
    rms = size * float(x.square().mean().sqrt())
    assert 0.1 < rows.prior_size / PRIOR_FACTOR / rms < 10


def test_a_missing_gradient_ends_the_walk_by_name():
    layer, conv, x = made()
    y = layer(x[None])[0].detach()
    with pytest.raises(ShareError, match=r"lacks 'conv\.weight'.*gradient matching"):
        conv.back(state(y), NO_GRADIENTS)
