from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.core.errors import ModelError, ShareError
from softleak.defenses import GaussianNoise, Prune
from softleak.inversion.results import SUFFICIENT_PSNR
from softleak.paper import data, models

PIXEL = torch.tensor(data.CIFAR10_NORM.std, dtype=torch.double).view(3, 1, 1)


def psnr(inversion: sl.Inversion, sample: data.Sample) -> float:
    """Of unquantised pixels of range one, in float64."""
    off = (inversion.input.view_as(sample.x) - sample.x.double()) * PIXEL
    return -10 * math.log10(float(off.square().mean()) + 1e-300)


def attack(model: nn.Module, sample: data.Sample, **options) -> sl.Inversion:
    share = sl.capture(model, sample.x, sample.y)
    recovery = sl.recover_label(model, share)
    return sl.invert(model, share, recovery, pixel=PIXEL.view(-1, 1, 1), **options)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh])
@pytest.mark.parametrize("bias", [True, False])
def test_fully_connected_networks(draw, activation, bias):
    model = models.mlp(3072, (512, 256), activation=activation, bias=bias).eval()
    for sample in draw(data.Mixup(), 3):
        share = sl.capture(model, sample.x, sample.y)
        recovery = sl.recover_label(model, share)
        assert recovery.status is sl.Status.UNIQUE
        inversion = sl.invert(model, share, recovery)
        assert psnr(inversion, sample) > 110
        assert inversion.determined


@pytest.mark.parametrize("make", [models.lenet, lambda: models.uniform_(models.lenet())])
def test_the_papers_lenet(draw, make):
    model = make().eval()
    (sample,) = draw(data.Smoothing(), 1)
    inversion = attack(model, sample)
    assert psnr(inversion, sample) > 90
    assert abs(psnr(inversion, sample) - inversion.psnr_predicted) < 9.54  # a factor of 3
    assert [layer.name for layer in inversion.layers] == ["features.4", "features.2", "features.0"]
    assert [layer.rows for layer in inversion.layers] == [4380, 4380, 3984]
    assert inversion.determined


CONVOLUTIONS = [
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 3, "stride": 2, "padding": 1, "bias": False},
    {"kernel_size": 3, "dilation": 2, "padding": 2},
    {"kernel_size": 3, "padding": 1, "groups": 2},
    {"kernel_size": (1, 3), "padding": (0, 1), "stride": (1, 2)},
]


@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
def test_convolutions_of_every_kind(options):
    conv = nn.Conv2d(2, 12, **options).double()
    features = conv(torch.zeros(1, 2, 8, 8).double()).numel()
    head = nn.Linear(features, 7, bias=False).double()
    model = nn.Sequential(
        conv, nn.BatchNorm2d(12).double(), nn.Tanh(), nn.Flatten(), nn.Dropout(), head
    )
    model[1].running_mean.uniform_()
    model[1].running_var.uniform_(0.5, 1.5)
    model.eval()
    x, y = torch.randn(2, 8, 8).double(), torch.rand(7).double().softmax(0)
    share = sl.capture(model, x, y)
    inversion = sl.invert(model, share, sl.recover_label(model, share))
    assert float((inversion.input - x).abs().max()) < 1e-6


def test_a_chain_is_prepared_once_and_scale_does_not_matter(draw):
    model = models.mlp(3072, (512, 256), activation=nn.Sigmoid).eval()
    chain = sl.Chain.of(model, sl.Head.of(model), (3, 32, 32))
    for sample in draw(data.Smoothing(), 2):
        share = sl.capture(model, sample.x, sample.y).scaled(7.0)
        recovery = sl.recover_label(model, share, family=sl.Smoothed(), scale="unknown")
        assert psnr(sl.invert(model, share, recovery, chain=chain), sample) > 100


LENETS = {
    "default": models.lenet,
    "trained": models.trained_lenet,
    "leaky": lambda: models.lenet(activation=nn.LeakyReLU),
}


@pytest.mark.parametrize(
    ("name", "enough"), [("default", True), ("trained", None), ("leaky", False)]
)
def test_the_thorough_pass_is_for_what_the_first_one_leaves_open(name, enough, draw):
    """Without AVX2 the trained LeNet is predicted 90.6 dB: too near 85 dB to be presumed."""
    torch.manual_seed(0)
    model = LENETS[name]().eval()
    (sample,) = draw(data.Smoothing(), 1)
    share = sl.capture(model, sample.x, sample.y)
    recovery = sl.recover_label(model, share)
    chain = sl.Chain.of(model, sl.Head.of(model), (3, 32, 32))
    first = sl.Chain(chain.head, chain.passes[0])
    quick, both = (sl.invert(model, share, recovery, chain=c, pixel=PIXEL) for c in (first, chain))
    good = quick.determined and quick.psnr_predicted >= SUFFICIENT_PSNR
    assert good == enough or enough is None
    assert torch.equal(quick.input, both.input) == good
    assert both.psnr_predicted >= quick.psnr_predicted
    # With LeakyReLU the second pass gained 3.7 dB in the one run measured, without AVX2. The 3 dB
    # allowed here are a choice, not a measured spread.
    assert psnr(both, sample) >= psnr(quick, sample) - 3
    for found in (quick, both):
        rosy = found.psnr_predicted - psnr(found, sample)
        assert rosy < 9.54  # a factor of 3
        assert rosy > -9.54 or not found.determined


def test_of_two_passes_the_one_that_promises_more_is_kept(draw):
    model = models.uniform_(models.lenet(image=16)).eval()
    (sample,) = draw(data.Smoothing(), 1, size=16)
    clean = sl.capture(model, sample.x, sample.y)
    share, recovery = Prune(0.99)(clean), sl.recover_label(model, clean)
    chain = sl.Chain.of(model, sl.Head.of(model), (3, 16, 16))
    first = sl.Chain(chain.head, chain.passes[0])
    quick, kept = (sl.invert(model, share, recovery, chain=c) for c in (first, chain))
    assert quick.psnr_predicted < SUFFICIENT_PSNR
    assert kept.psnr_predicted >= quick.psnr_predicted


def test_of_two_passes_that_determine_nothing_the_one_that_promises_more_is_kept():
    """Half of the rows are missing, so that both passes leave the input open."""
    torch.manual_seed(0)
    halves = {"kernel_size": 3, "stride": 2, "padding": 1}
    model = nn.Sequential(
        nn.Conv2d(3, 6, **halves), nn.Tanh(), nn.Conv2d(6, 6, **halves), nn.Tanh(),
        nn.Flatten(), nn.Linear(54, 10),
    ).eval()  # fmt: skip
    x = torch.randn(3, 12, 12)
    share = sl.capture(model, x, 3)
    recovery = sl.recover_label(model, share)
    chain = sl.Chain.of(model, sl.Head.of(model), (3, 12, 12))
    both = sl.invert(model, share, recovery, chain=chain)
    alone = [sl.invert(model, share, recovery, chain=sl.Chain(chain.head, p)) for p in chain.passes]
    assert not any(one.determined for one in alone)
    assert both.psnr_predicted == max(one.psnr_predicted for one in alone)


def test_noise_that_was_declared_is_not_counted_twice(draw):
    """Counted twice, it would cost 3 dB; draws of the error alone differ by some tenths."""
    torch.manual_seed(0)
    model = models.mlp(3072, (128,)).eval()
    (sample,) = draw(data.Smoothing(), 1)
    share = GaussianNoise(1e-4, 0)(sl.capture(model, sample.x, sample.y))
    recovery = sl.recover_label(model, share)
    found = sl.invert(model, share, recovery)
    assert recovery.noise == pytest.approx(1e-4, rel=0.1)
    told = sl.invert(model, share.expecting(recovery.noise), recovery)
    assert told.psnr_predicted == pytest.approx(found.psnr_predicted, abs=1.0)


def test_coarser_gradients_give_larger_predicted_errors(draw):
    model = models.mlp(3072, (512, 256), activation=nn.Sigmoid).eval()
    (sample,) = draw(data.Smoothing(), 1)
    share = sl.capture(model, sample.x, sample.y)
    fine = sl.invert(model, share, sl.recover_label(model, share))
    half = share.map(lambda _, g: g.half())
    coarse = sl.invert(model, half, sl.recover_label(model, half))
    assert coarse.psnr_predicted < fine.psnr_predicted - 20
    assert psnr(coarse, sample) < psnr(fine, sample) - 20


def pooled(*between: nn.Module) -> nn.Module:
    """A convolution that sees enough, averaged two by two."""
    layers = [nn.Conv2d(2, 40, 3, padding=1), *between, nn.AvgPool2d(2), nn.Tanh(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(640, 7, bias=False)).double().eval()


def test_averages_determine_what_is_under_a_convolution():
    torch.manual_seed(0)
    model, x = pooled(), torch.randn(2, 8, 8).double()
    share = sl.capture(model, x, torch.rand(7).double().softmax(0))
    inversion = sl.invert(model, share, sl.recover_label(model, share))
    assert float((inversion.input - x).abs().max()) < 1e-6
    assert inversion.determined


def test_averages_of_activations_are_refused():
    model = pooled(nn.Tanh())
    share = sl.capture(model, torch.randn(2, 8, 8).double(), 1)
    with pytest.raises(ModelError, match="averages the outputs of an activation"):
        sl.invert(model, share, sl.recover_label(model, share))


def test_without_a_feature_there_is_no_start(trained, shares):
    captured, _ = shares(data.Smoothing(), 2)
    mean = {n: (captured[0][n] + captured[1][n]) / 2 for n in captured[0]}
    batch = sl.GradientShare(mean, (3, 32, 32))
    with pytest.raises(ShareError, match="NOT_SINGLE"):
        sl.invert(trained, batch, sl.recover_label(trained, batch))


def chain_error(model: nn.Module, x: torch.Tensor) -> tuple[float, sl.Inversion]:
    share = sl.capture(model, x, torch.rand(5).to(x.dtype).softmax(0))
    inversion = sl.invert(model, share, sl.recover_label(model, share))
    return float((inversion.input.view_as(x) - x).abs().max()), inversion


def two_convolutions(activation: nn.Module, between: nn.Module | None = None) -> nn.Module:
    first = [nn.Conv2d(2, 24, 3, padding="same"), between or nn.Identity(), activation]
    second = [nn.Conv2d(24, 24, 3, padding=1), activation, nn.Flatten()]
    return nn.Sequential(*first, *second, nn.Linear(1536, 5, bias=False)).eval()


@pytest.mark.parametrize("seed", range(6))
def test_convolutions_with_relu_lose_nothing_they_need(seed):
    torch.manual_seed(seed)
    error, inversion = chain_error(two_convolutions(nn.ReLU()), torch.randn(2, 8, 8))
    assert error < 1e-4
    assert inversion.determined


def test_slopes_are_those_of_double_precision():
    torch.manual_seed(0)
    model = two_convolutions(nn.LeakyReLU()).double()
    error, inversion = chain_error(model, torch.randn(2, 8, 8).double())
    assert error < 1e-12
    assert max(layer.residual for layer in inversion.layers) < 10


def test_a_black_image_is_an_image():
    torch.manual_seed(0)
    error, _ = chain_error(two_convolutions(nn.Tanh()), torch.zeros(2, 8, 8))
    assert error < 1e-4


def test_a_channel_that_a_normalisation_cut_is_not_known():
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(24)
    norm.weight.data[0] = 0
    error, _ = chain_error(
        two_convolutions(nn.Tanh(), norm).double(), torch.randn(2, 8, 8).double()
    )
    assert error < 1e-6


def test_train_mode_is_refused_before_anything_changes():
    model = two_convolutions(nn.Tanh(), nn.BatchNorm2d(24)).train()
    before = model[1].running_mean.clone()
    with pytest.raises(ModelError, match="train mode"):
        sl.Chain.of(model, sl.Head.of(model), (2, 8, 8))
    assert torch.equal(model[1].running_mean, before)


def test_a_missing_or_misshapen_gradient_is_named():
    torch.manual_seed(0)
    model, x = two_convolutions(nn.Tanh()), torch.randn(2, 8, 8)
    share = sl.capture(model, x, 1)
    recovery = sl.recover_label(model, share)
    with pytest.raises(ShareError, match=r"lacks '3\.weight'"):
        sl.invert(model, share.without("3.weight"), recovery)
    other = sl.GradientShare({**share.gradients, "3.weight": torch.zeros(1)}, (2, 8, 8))
    with pytest.raises(ShareError, match=r"should be \(24, 24, 3, 3\)"):
        sl.invert(model, other, recovery)
