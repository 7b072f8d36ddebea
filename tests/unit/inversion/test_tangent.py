"""An activation is linearised again around a better point, whatever lies between."""

from __future__ import annotations

import torch
from torch import nn

from softleak.inversion.activations import ActivationStep, inverse_of
from softleak.inversion.lossless import Affine, Reshape
from softleak.inversion.state import Tangent
from tests.unit.inversion.examples import NO_GRADIENTS, normal, state

STEP = ActivationStep("tanh", inverse_of(nn.Tanh()))


def walked() -> tuple[Tangent, Affine, torch.Tensor]:
    """Outputs (12,) of a tanh, behind an affine map and a change of shape."""
    a = normal(12)
    affine = Affine("norm", 1 + normal(12, seed=1).abs(), normal(12, seed=2))
    above = STEP.back(state(torch.tanh(a), 1e-3), NO_GRADIENTS)
    passed = affine.back(above.state, NO_GRADIENTS, above.tangent)
    shaped = Reshape("view", (3, 4), (12,)).back(passed.state, NO_GRADIENTS, passed.tangent)
    return shaped.tangent, affine, a


def test_steps_between_carry_the_tangent_along():
    tangent, affine, a = walked()
    here = ((a - affine.shift) / affine.scale).view(3, 4)
    torch.testing.assert_close(tangent.state().measurement.value, here)


def test_the_tangent_at_a_better_point_is_that_of_the_activation_there():
    tangent, affine, a = walked()
    better = a + 1.0
    moved = tangent.moved(((better - affine.shift) / affine.scale).view(3, 4))
    assert moved is not None
    torch.testing.assert_close(moved.point, better)
    alone = affine.carried(STEP.linearised(tangent.out, moved.point)).reshape((3, 4))
    assert torch.equal(moved.state().measurement.value, alone.measurement.value)
    assert torch.equal(moved.state().measurement.error, alone.measurement.error)
    assert torch.equal(moved.state().sensitivity.delta, alone.sensitivity.delta)


def test_a_point_on_the_tangent_moves_nothing():
    tangent, affine, a = walked()
    near = a + 1e-5
    assert tangent.moved(((near - affine.shift) / affine.scale).view(3, 4)) is None


def test_a_straight_activation_is_never_linearised_again():
    step = ActivationStep("leaky", inverse_of(nn.LeakyReLU(0.1)))
    found = step.back(state(normal(12).abs() + 1), NO_GRADIENTS)
    assert found.tangent.moved(normal(12, seed=1).abs() + 1) is None
