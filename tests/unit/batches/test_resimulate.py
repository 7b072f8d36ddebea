"""A re-simulation agrees with the truth to rounding, and with nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import softleak as sl
from softleak.core.subject import Subject
from softleak.paper import data, models
from softleak.paper.data import CIFAR10_NORM
from softleak.resimulation import resimulate


def vouched(model, x, y):
    """The share of a batch, of which somebody says that it is the mean gradient itself."""
    return replace(sl.capture(model, x, y), scale="known")


def drawn(size: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Real images (B, 3, 32, 32) and labels (B, 10) from a flat Dirichlet distribution."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(200, generator=generator)[:size]
    x = data.embedded().images[chosen].permute(0, 3, 1, 2).float() / 255
    y = -torch.rand(size, 10, generator=generator).log()
    return CIFAR10_NORM.apply(x), y / y.sum(1, keepdim=True)


def with_statistics(model: nn.Module) -> nn.Module:
    """The network in eval mode, its BatchNorm statistics those of real images."""
    with torch.no_grad():
        model.train()(drawn(64, 9)[0])
    return model.eval()


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    match name:
        case "lenet":
            return models.trained_lenet()
        case "mlp":
            return models.mlp(3072, (64, 32))
        case "float64":
            return models.mlp(3072, (64, 32)).double()
        case "train mode":
            return models.resnet20().train()
        case _:
            return with_statistics(models.resnet20())


@pytest.mark.parametrize("name", ["lenet", "mlp", "float64", "resnet20", "train mode"])
def test_the_true_batch_agrees_to_a_few_roundings(name):
    model = network(name)
    subject = Subject.of(model, (3, 32, 32))
    for size in (2, 5):
        x, y = drawn(size)
        found = resimulate(subject, sl.capture(model, x, y), x, y)
        assert found.agree, found
        assert found.worst is not None
        assert found.worst.misfit < 8
        assert {layer.name for layer in found.layers} == {n for n, _ in model.named_parameters()}


def test_the_models_parameters_and_their_flags_stay_as_they_were():
    model = network("mlp")
    x, y = drawn(2)
    share = sl.capture(model, x, y)
    model.requires_grad_(False)
    before = {name: p.clone() for name, p in model.state_dict().items()}
    assert resimulate(Subject.of(model, (3, 32, 32)), share, x, y).agree
    assert not any(p.requires_grad for p in model.parameters())
    assert all(torch.equal(before[name], p) for name, p in model.state_dict().items())


def test_a_label_off_by_a_thousandth_does_not_agree():
    model = network("mlp")
    x, y = drawn(4)
    other = y.clone()
    other[0] = 0.9995 * y[0] + 0.0005 * y[1]
    subject = Subject.of(model, (3, 32, 32))
    assert not resimulate(subject, sl.capture(model, x, y), x, other).agree


def test_an_input_off_by_a_thousandth_does_not_agree():
    model = network("lenet")
    x, y = drawn(3)
    other = x.clone()
    other[1] += 1e-3
    subject = Subject.of(model, (3, 32, 32))
    assert not resimulate(subject, sl.capture(model, x, y), other, y).agree


def test_the_order_of_samples_says_nothing():
    model = network("mlp")
    x, y = drawn(4)
    subject = Subject.of(model, (3, 32, 32))
    assert resimulate(subject, sl.capture(model, x, y), x.flip(0), y.flip(0)).agree


def test_a_factor_is_known_or_the_share_does_not_agree():
    model = network("mlp")
    x, y = drawn(3)
    subject, share = Subject.of(model, (3, 32, 32)), sl.capture(model, x, y).scaled(0.5)
    assert resimulate(subject, share, x, y, scale=0.5).agree
    assert not resimulate(subject, share, x, y).agree


def test_declared_noise_counts_as_rounding_and_may_hide_everything():
    model = network("mlp")
    x, y = drawn(3)
    subject, share = Subject.of(model, (3, 32, 32)), sl.capture(model, x, y)
    generator = torch.Generator().manual_seed(0)
    noisy = share.map(lambda _, g: g + 1e-5 * torch.randn(g.shape, generator=generator))
    assert not resimulate(subject, noisy, x, y).agree
    assert resimulate(subject, noisy.expecting(1e-5), x, y).agree
    drowned = resimulate(subject, noisy.expecting(10.0), x, y)
    assert not drowned.agree  # every layer is silent, so nothing was tested
    assert len(drowned.silent) == len(drowned.layers)


def test_a_model_that_refuses_the_inputs_agrees_with_nothing():
    model = network("mlp")
    x, y = drawn(3)
    subject, share = Subject.of(model, (3, 32, 32)), sl.capture(model, x, y)
    found = resimulate(subject, share, x[:, :, :8], y)
    assert not found.agree
    assert "does not take" in found.problem
