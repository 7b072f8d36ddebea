from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.core.subject import Subject
from softleak.labels.noisy.spectrum import Typical, features_of_noise


@pytest.fixture(scope="module")
def subject() -> Subject:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 5)).eval()
    return Subject.of(model, (3, 4, 4))


def test_the_usual_direction_and_length_are_those_of_the_features(subject):
    features, typical = features_of_noise(subject), Typical.of(subject)
    assert features.shape == (16, 32)
    assert bool((features >= 0).all())
    assert float(typical.direction.norm()) == pytest.approx(1)
    along = features @ typical.direction
    assert typical.length == pytest.approx(float(along.log().mean()))
    assert bool(((along.log() - typical.length).abs() < 4 * typical.doubt).all())
    assert typical.doubt >= 0.5


def test_equal_seeds_give_equal_features_and_leave_the_generator_alone(subject):
    before = torch.get_rng_state()
    assert torch.equal(features_of_noise(subject), features_of_noise(subject))
    assert torch.equal(torch.get_rng_state(), before)


class Mixing(nn.Module):
    """A layer that subtracts the mean of its batch, as BatchNorm does in train mode."""

    def forward(self, x):
        return x - x.mean(0) if len(x) > 1 else x


def test_all_inputs_at_once_have_the_features_that_each_has_alone(subject):
    layers = list(subject.model)
    mixing = nn.Sequential(*layers[:2], Mixing(), *layers[2:])
    alone = features_of_noise(Subject(mixing, sl.Head.of(mixing), (3, 4, 4)))
    torch.testing.assert_close(features_of_noise(subject), alone, atol=1e-6, rtol=1e-5)


def test_without_an_input_shape_nothing_is_known():
    model = nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 3))
    typical = Typical.unknown(sl.Head.of(model))
    tau = torch.tensor([0.1, -0.5, 1.0], dtype=torch.double)
    assert math.isinf(typical.doubt)
    assert torch.equal(typical.log_prior(torch.tensor(1.0), 0.1, tau), torch.zeros(3).double())


def test_the_prior_is_normal_in_the_logarithm_of_the_length():
    typical = Typical(torch.ones(1).double(), length=math.log(5.0), doubt=0.4)
    steps = torch.linspace(-4, 4, 4001, dtype=torch.double)
    along = torch.tensor(2.0, dtype=torch.double)
    density = typical.log_prior(along, 0.0, steps.exp()).exp()
    mass = torch.trapezoid(density, steps)
    assert float(mass) == pytest.approx(math.sqrt(2 * math.pi), rel=1e-6)
    mean = torch.trapezoid(density * steps, steps) / mass
    assert float(mean) == pytest.approx(math.log(2.0 / 5.0), abs=1e-6)  # |x| = along/τ = 5
    opposed = typical.log_prior(along, 0.0, -steps.exp()).exp()
    assert torch.allclose(opposed, density * 1e-3)
