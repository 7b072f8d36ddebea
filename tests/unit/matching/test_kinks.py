"""Masks as unknowns: networks whose units switch are written by gates, solved for and proved."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import softleak as sl
from benchmarks.gauss_newton_wrong import FEW_CLASSES, SHAPE, SmallResidual, attempt_tries
from softleak.core.subject import Subject
from softleak.matching import GaussNewton, Image
from softleak.matching.gauss_newton.kinks import GatedFunction, MaskDescent

FAST = GaussNewton(memory=1 << 28)
KINDS = {
    "ReLU": nn.ReLU, "leaky": lambda: nn.LeakyReLU(0.2), "ReLU6": nn.ReLU6,
    "hard tanh": nn.Hardtanh, "hard-swish": nn.Hardswish,
    "in place": lambda: nn.ReLU(inplace=True),
    "pooled": lambda: nn.Sequential(nn.ReLU(), nn.MaxPool2d(3, 1, 1)),
}  # fmt: skip


class Absolute(nn.Module):
    """A unit that switches by an operation that is not written by gates."""

    def forward(self, x):
        return x.abs()


def network(act=nn.ReLU):
    torch.manual_seed(0)
    model = SmallResidual(act, pooled=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model.eval()


def sample(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, *SHAPE, generator=generator)
    return x, torch.randn(1, FEW_CLASSES, generator=generator).softmax(1)


def functions(model):
    subject = Subject.of(model, SHAPE)
    exact = FAST.model(subject, tuple(subject.parameters), (1, *SHAPE)).exact
    return exact, GatedFunction.of(exact)


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_at_its_own_masks_sends_what_it_sends(kind):
    exact, gated = functions(network(KINDS[kind]))
    x, y = sample()
    z = exact.pack(2 * x.double(), y.double())
    assert gated.units > 0
    assert torch.allclose(gated.rows(gated.own(z)), exact.rows(z), rtol=1e-9, atol=1e-12)
    assert not FAST.roughness(Subject.of(network(KINDS[kind]), SHAPE), SHAPE)


def test_what_no_gate_writes_is_not_solved_for():
    subject = Subject.of(network(Absolute), SHAPE)
    assert "abs" in FAST.roughness(subject, SHAPE)
    assert not FAST.switches(subject, SHAPE)


def solved(model, x, y, near, method=FAST):
    share = sl.capture(model, x[0], y[0])
    recovery = sl.recover_label(model, share)
    return sl.reconstruct(model, share, recovery, optimiser=method, start=Image(near))


def test_an_image_behind_relus_is_proved_where_held_masks_get_stuck():
    model, (x, y) = network(), sample(1)
    noise = torch.randn(SHAPE, generator=torch.Generator().manual_seed(5))
    near = x[0] + 0.2 * noise
    found = solved(model, x, y, near)
    assert found.proved, found.message
    assert float((found.input - x[0]).abs().max()) < 1e-4
    assert float((found.input - x[0]).square().mean().sqrt()) < 4 * float(found.error.norm()) / 8
    held = GaussNewton(memory=1 << 28, masks=MaskDescent(rounds=0))
    stuck = solved(model, x, y, near, held)
    assert not stuck.proved
    assert float((stuck.input - x[0]).abs().max()) > 1e-3


def test_an_image_whose_unit_is_about_to_switch_is_not_proved():
    model, (x, y) = network(), sample(2)
    with torch.no_grad():  # the first unit of the stem sees zero, but for rounding
        seen = model.stem(x)[0, 0, 2, 2]
        model.stem.bias[0] -= seen
    found = solved(model, x, y, x[0])
    assert not found.proved
    assert float((found.input - x[0]).abs().max()) < 1e-3


@pytest.mark.slow
def test_wrong_images_behind_relus_are_not_proved():
    found = list(attempt_tries(60, 1, ["ReLU", "leaky ReLU, pooled"]))
    assert not [one for one in found if one.wrong]
    assert any(one.proved for one in found)
