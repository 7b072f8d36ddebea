"""What rounding and noise cost, and whether the inversion says so beforehand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.audit.metrics import psnr
from softleak.paper import data, models

PIXEL = torch.tensor(data.CIFAR10_NORM.std, dtype=torch.double).view(3, 1, 1)
FACTOR_3 = 9.55  # in dB


def noisy(share: sl.GradientShare, size: float) -> sl.GradientShare:
    generator = torch.Generator().manual_seed(0)
    changed = share.map(lambda _, g: g + size * torch.randn(g.shape, generator=generator))
    return changed.expecting(size)


def scores(model: nn.Module, share: sl.GradientShare, x: torch.Tensor) -> tuple[float, float]:
    """True and predicted PSNR."""
    inversion = sl.invert(model, share, sl.recover_label(model, share), pixel=PIXEL)
    image = data.CIFAR10_NORM.invert(inversion.input.view_as(x))
    return psnr(image, data.CIFAR10_NORM.invert(x.double())), inversion.psnr_predicted


SIDE = 16  # pixels of the images of convolutional networks


@pytest.fixture
def sample(draw) -> data.Sample:
    (one,) = draw(data.Smoothing(), 1)
    return one


@pytest.fixture
def little(draw) -> data.Sample:
    (one,) = draw(data.Smoothing(), 1, size=SIDE)
    return one


@pytest.mark.parametrize(
    "make", [lambda: models.lenet(image=SIDE), lambda: models.mlp(3 * SIDE**2, (128, 64))],
    ids=["lenet", "fully connected"],
)  # fmt: skip
def test_sixteen_bits_cost_what_was_predicted(make, little):
    torch.manual_seed(0)
    model, sample = make().eval(), little
    share = sl.capture(model, sample.x, sample.y)
    fine, _ = scores(model, share, sample.x)
    coarse, predicted = scores(model, share.map(lambda _, g: g.half()), sample.x)
    assert coarse < fine - 20
    assert abs(coarse - predicted) < FACTOR_3


def test_noise_costs_what_was_predicted(sample):
    torch.manual_seed(0)
    model = models.mlp(3072, (512, 256)).eval()
    share = sl.capture(model, sample.x, sample.y)
    found = [scores(model, noisy(share, size), sample.x) for size in (1e-5, 1e-4, 1e-3)]
    for true, predicted in found:
        assert abs(true - predicted) < FACTOR_3
    qualities = [true for true, _ in found]
    assert qualities == sorted(qualities, reverse=True)
    assert qualities[0] - qualities[-1] > 30


def test_noise_drowns_a_convolutional_net_and_it_says_so(little):
    torch.manual_seed(0)
    model, sample = models.lenet(image=SIDE).eval(), little
    share = sl.capture(model, sample.x, sample.y)
    faint, predicted = scores(model, noisy(share, 1e-5), sample.x)
    assert abs(faint - predicted) < FACTOR_3
    assert faint > 20
    for size in (1e-3, 1e-2):
        true, predicted = scores(model, noisy(share, size), sample.x)
        assert true < 15
        assert predicted < 15


def test_noise_that_was_not_declared_is_noticed(sample):
    model = models.mlp(3072, (512, 256)).eval()
    share = noisy(sl.capture(model, sample.x, sample.y), 1e-3)
    undeclared = sl.GradientShare(share.gradients, share.input_shape)
    recovery = sl.recover_label(model, undeclared)
    assert recovery.status is sl.Status.PROBABLE
    assert recovery.noise == pytest.approx(1e-3, rel=0.1)


def test_a_bound_is_many_standard_errors(draw):
    """Why the scale's standard error is taken to be the recovery's bound over 16."""
    torch.manual_seed(0)
    model = models.mlp(3072, (256,), bias=False).eval()
    head = sl.Head.of(model)
    seen = []
    model.get_submodule(head.name).register_forward_hook(lambda _, i, __: seen.append(i[0][0]))
    squares = []
    for sample in draw(data.Smoothing(), 24):
        recovery = sl.recover_label(model, sl.capture(model, sample.x, sample.y), head=head)
        model(sample.x[None])
        x = seen[-1].detach().double()
        scale = float(recovery.feature @ x / (x @ x)) - 1
        squares.append((scale / recovery.feature_error) ** 2)
    assert 1 / 64 < (sum(squares) / len(squares)) ** 0.5 < 1 / 4
