"""Reshapes and affine maps lose nothing: values, δ, errors and precisions follow exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from softleak.core.errors import ModelError
from softleak.inversion.steps import Affine, LayerState, Reshape
from tests.unit.inversion.examples import NO_GRADIENTS, normal, state


def norm(layer: nn.BatchNorm2d | nn.BatchNorm1d) -> nn.Module:
    layer.running_mean.copy_(normal(3))
    layer.running_var.copy_(normal(3, seed=1).abs() + 0.5)
    layer.weight.data.copy_(normal(3, seed=2))
    layer.bias.data.copy_(normal(3, seed=3))
    return layer.double().eval()


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.BatchNorm2d(3), (3, 4, 2)), (nn.BatchNorm1d(3), (3,)), (nn.BatchNorm1d(3), (3, 5))],
    ids=str,
)
def test_a_batch_norm_in_eval_mode_is_walked_back_exactly(layer, shape):
    layer, x = norm(layer), normal(*shape, seed=4).requires_grad_()
    y = layer(x[None])[0]
    delta = normal(*shape, seed=5)
    (expected,) = torch.autograd.grad((y * delta).sum(), x)
    step = Affine.of("norm", layer, shape)
    torch.testing.assert_close(step.forward(x.detach()), y.detach())
    found = step.back(state(y.detach(), 1e-6, delta), NO_GRADIENTS)
    torch.testing.assert_close(found[0].value, x.detach())
    torch.testing.assert_close(found[0].delta, expected)
    errors = 1e-6 / step.scale.abs().expand(shape)
    torch.testing.assert_close(found[0].error, errors)
    assert found[1] is None


def test_the_precision_of_an_affine_map_is_that_of_its_covariance():
    """With ``y = s x + c``, ``cov(x) = cov(y)/(s sᵀ)``."""
    root = normal(6, 6)
    precision, scale = root @ root.T + torch.eye(6).double(), normal(6, seed=1)
    known = LayerState.uncoupled(normal(6), torch.ones(6).double(), normal(6), normal(6))
    out = replace(known, precision=precision, measurements=4, error_reduction=2.0)
    found = Affine("scale", scale, normal(6, seed=2)).carried(out)
    covariance = torch.linalg.inv(precision) / (scale[:, None] * scale)
    torch.testing.assert_close(torch.linalg.inv(found.precision), covariance)
    assert found.measurements == 4
    assert found.error_reduction == 2.0


def test_the_curvature_of_delta_is_scaled_twice():
    scale = normal(4)
    out = LayerState(
        normal(4), torch.ones(4).double(), normal(4), normal(4).abs(), normal(4, seed=1), 0.3
    )
    found = Affine("scale", scale, 0 * scale).carried(out)
    torch.testing.assert_close(found.curvature, scale.square() * normal(4, seed=1))
    assert found.scale_error == 0.3


def test_what_was_multiplied_by_zero_is_not_known():
    scale = torch.tensor([2.0, 0.0]).double()
    found = Affine("scale", scale, torch.ones(2).double()).carried(state(normal(2)))
    assert found.error.isinf().tolist() == [False, True]
    assert found.value[1] == 0
    assert found.delta[1] == 0


def test_a_norm_without_statistics_is_refused_with_what_to_do():
    with pytest.raises(ModelError, match=r"running statistics, got none.*track_running_stats=True"):
        Affine.of("norm", nn.BatchNorm2d(3, track_running_stats=False), (3, 2, 2))


def test_a_reshape_is_undone():
    step, x = Reshape("flatten", (2, 3, 4), (24,)), normal(2, 3, 4)
    found = step.back(state(step.forward(x)), NO_GRADIENTS)[0]
    assert torch.equal(found.value, x)
    assert found.delta.shape == (2, 3, 4)
