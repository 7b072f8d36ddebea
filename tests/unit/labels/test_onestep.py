"""One step obeys the balance of a ReLU, several steps break it, and rounding is no proof."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from softleak.core.head import Head
from softleak.core.share import GradientShare
from softleak.labels.local.proportions import Balance

SHAPE = (3, 8, 8)


def dense(activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    layers = [nn.Flatten(), nn.Linear(192, 32), activation(), nn.Linear(32, 5)]
    return nn.Sequential(*layers)


def convolved() -> nn.Module:
    conv = [nn.Conv2d(3, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*conv, nn.Linear(54, 5, bias=False))


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def balance(model: nn.Module) -> Balance | None:
    return Balance.of(model, Head.of(model), SHAPE)


def update(model: nn.Module, steps: int, lr: float, momentum: float = 0.0) -> GradientShare:
    """Steps on batches of 8, each of its own samples."""
    after = copy.deepcopy(model)
    optimiser = torch.optim.SGD(after.parameters(), lr=lr, momentum=momentum)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(after(torch.rand(8, *SHAPE)), torch.randint(5, (8,))).backward()
        optimiser.step()
    return GradientShare.from_update(model.state_dict(), after.state_dict(), lr=lr)


@pytest.mark.parametrize("make", [dense, convolved])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("steps", "proved"), [(1, True), (2, False), (10, False)])
def test_one_step_is_proved_and_several_are_refuted(make, momentum, steps, proved):
    model = make()
    found = balance(model)
    for _ in range(5):
        share = update(model, steps, 0.1, momentum)
        checked = found.check(share, dict(model.named_parameters()), 0.1)
        assert checked.proved is proved
        assert ("not one plain step" in checked.reason) is not proved


@pytest.mark.parametrize("steps", [1, 2])
def test_a_learning_rate_so_small_that_rounding_hides_steps_proves_nothing(steps):
    model = dense()
    checked = balance(model).check(update(model, steps, 1e-6), dict(model.named_parameters()), 1e-6)
    assert not checked.proved
    assert "rounding" in checked.reason


def test_a_network_without_a_relu_before_its_head_cannot_be_checked():
    assert balance(dense(nn.Tanh)) is None
    assert balance(dense(nn.Sigmoid)) is None


def test_a_layer_that_is_not_sent_proves_nothing():
    model = dense()
    share = update(model, 1, 0.1).without("1.weight")
    assert not balance(model).check(share, dict(model.named_parameters()), 0.1).proved


def test_weight_decay_is_not_taken_for_a_plain_step():
    model = dense()
    share = update(model, 1, 0.1)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    decayed = share.map(lambda name, g: g + 5e-4 * parameters[name])
    assert not balance(model).check(decayed, parameters, 0.1).proved
