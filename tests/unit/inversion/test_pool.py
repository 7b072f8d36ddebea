"""Average pooling as a matrix, and what averages say of the averaged entries."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from softleak.inversion.steps import Pool
from tests.unit.inversion.examples import NO_GRADIENTS, normal, state

SHAPE = (2, 6, 6)
LAYERS = [
    nn.AvgPool2d(2), nn.AvgPool2d(3, 2, 1), nn.AvgPool2d(2, 1), nn.AdaptiveAvgPool2d(4),
    nn.AdaptiveAvgPool2d(1),
]  # fmt: skip


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_the_matrix_is_the_layer(layer):
    x = normal(*SHAPE)
    pool = Pool.of("pool", layer, SHAPE)
    torch.testing.assert_close(x.flatten(1) @ pool.matrix.T, layer(x[None])[0].flatten(1))
    assert not pool.injective


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_value_and_delta_are_those_of_the_transposed_map(layer):
    x = normal(*SHAPE).requires_grad_()
    y = layer(x[None])[0]
    delta = normal(*y.shape, seed=1)
    (expected,) = torch.autograd.grad((y * delta).sum(), x)
    pool = Pool.of("pool", layer, SHAPE)
    found = pool.back(state(y.detach(), 1e-3, delta), NO_GRADIENTS)[0]
    torch.testing.assert_close(found.delta, expected)
    torch.testing.assert_close(layer(found.value[None])[0], y.detach())
    assert found.error.isinf().all()
    assert found.measurements == y.numel()


def test_the_precision_counts_every_average_once():
    """A change of the entries costs what it changes of the averages, in their errors."""
    layer, x = nn.AvgPool2d(3, 2, 1), normal(*SHAPE)
    out = state(layer(x[None])[0], 1e-3)
    found = Pool.of("pool", layer, SHAPE).back(out, NO_GRADIENTS)[0]
    change = normal(*SHAPE, seed=1)
    cost = change.flatten() @ found.precision @ change.flatten()
    torch.testing.assert_close(cost, (layer(change[None]) / 1e-3).square().sum())
    rank = int(torch.linalg.matrix_rank(found.precision, rtol=1e-9))
    assert rank == found.measurements == out.value.numel()


def test_an_average_that_is_not_known_has_no_weight():
    out = state(normal(2, 3, 3), torch.inf)
    found = Pool.of("pool", nn.AvgPool2d(2), SHAPE).back(out, NO_GRADIENTS)[0]
    assert not found.precision.any()


def test_pooling_of_single_entries_loses_nothing():
    pool, x = Pool.of("pool", nn.AvgPool2d(1), SHAPE), normal(*SHAPE)
    assert pool.injective
    found = pool.back(state(x, 0.25), NO_GRADIENTS)[0]
    torch.testing.assert_close(found.value, x)
    torch.testing.assert_close(found.error, torch.full(SHAPE, 0.25).double())
