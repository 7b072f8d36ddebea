"""An activation is linearised again around a better point, whatever lies between."""

from __future__ import annotations

import torch
from torch import nn

from softleak.inversion.steps import ActivationStep, Affine, LayerState, Reshape, inverse_of
from tests.unit.inversion.examples import NO_GRADIENTS, normal, state

STEP = ActivationStep("tanh", inverse_of(nn.Tanh()))


def walked() -> tuple[LayerState, LayerState, Affine, torch.Tensor]:
    """Outputs (12,) of a tanh, behind an affine map and a change of shape."""
    a = normal(12)
    affine = Affine("norm", 1 + normal(12, seed=1).abs(), normal(12, seed=2))
    out = state(torch.tanh(a), 1e-3)
    passed = affine.back(STEP.back(out, NO_GRADIENTS)[0], NO_GRADIENTS)[0]
    return Reshape("view", (3, 4), (12,)).back(passed, NO_GRADIENTS)[0], out, affine, a


def test_steps_between_carry_the_tangent_along():
    below, _, affine, a = walked()
    here = ((a - affine.shift) / affine.scale).view(3, 4)
    torch.testing.assert_close(below.value, here)


def test_the_tangent_at_a_better_point_is_that_of_the_activation_there():
    below, out, affine, a = walked()
    better = a + 1.0
    here = ((better - affine.shift) / affine.scale).view(3, 4)
    moved = below.moved(here)
    assert moved is not None
    point = affine.forward(here.reshape(12))
    torch.testing.assert_close(point, better)
    alone = affine.carried(STEP.around(out, point)).reshape((3, 4))
    assert torch.equal(moved.value, alone.value)
    assert torch.equal(moved.error, alone.error)
    assert torch.equal(moved.delta, alone.delta)


def test_a_point_on_the_tangent_moves_nothing():
    below, _, affine, a = walked()
    near = a + 1e-5
    assert below.moved(((near - affine.shift) / affine.scale).view(3, 4)) is None


def test_a_straight_activation_is_never_linearised_again():
    step = ActivationStep("leaky", inverse_of(nn.LeakyReLU(0.1)))
    found, _ = step.back(state(normal(12).abs() + 1), NO_GRADIENTS)
    assert found.moved(normal(12, seed=1).abs() + 1) is None
