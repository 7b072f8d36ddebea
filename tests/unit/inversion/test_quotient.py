"""One division gives the input of a first layer, and the model says whether it did."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import softleak as sl
from softleak.audit import Options, Truth
from tests.integration import strangers as s

SHAPE = (s.WIDTH,)


def audited(model, sent, x):
    share = sl.GradientShare(sent, SHAPE)
    return sl.audit(model, share, truth=Truth(None, x), options=Options(seconds=0.0))


def made(seed, loss=s.mse):
    model, x = s.made(s.smooth, seed), torch.rand(1, s.WIDTH)
    return model, x[0], s.gradient(model, x, torch.linspace(-1, 1, s.CLASSES)[None], loss)


@pytest.mark.parametrize("seed", range(3))
def test_under_a_squared_error_the_prediction_holds(seed):
    model, x, sent = made(seed)
    found = audited(model, sent, x)
    assert found.input.leaked
    assert found.score.psnr >= found.input.psnr_predicted - 3
    assert found.score.psnr >= 60


@pytest.mark.parametrize("seed", range(3))
def test_at_other_weights_the_input_is_one_up_to_a_factor(seed):
    _, x, sent = made(seed, s.mse)
    found = audited(s.made(s.smooth, seed + 50), sent, x)
    assert found.input.leaked
    assert found.input.up_to_factor
    assert found.input.psnr_predicted is None
    assert found.score.psnr >= 60


@pytest.mark.parametrize("seed", range(3))
def test_pruned_entries_are_left_out(seed):
    model, x, sent = made(seed)
    found = audited(model, s.pruned(sent, 0.5), x)
    assert found.input.leaked
    assert found.score.psnr >= 30


@pytest.mark.parametrize("seed", range(3))
def test_several_samples_are_no_input(seed):
    model, x = s.made(s.smooth, seed), torch.rand(3, s.WIDTH)
    sent = s.gradient(model, x, torch.linspace(-1, 1, 3 * s.CLASSES).view(3, -1), s.mse)
    assert not audited(model, sent, x[0]).input.leaked


@pytest.mark.parametrize("seed", range(3))
def test_signs_are_no_input(seed):
    model, x, sent = made(seed)
    assert not audited(model, {n: g.sign() for n, g in sent.items()}, x).input.leaked


def test_the_loss_does_not_hide_the_inputs_of_several_samples():
    model, x = s.made(s.classifier, 0), torch.randn(3, s.WIDTH)
    y = (torch.rand(3, s.CLASSES) < 0.4).float()
    found = audited(model, s.gradient(model, x, y, F.binary_cross_entropy_with_logits), x[0])
    assert found.input.leaked
    told = found.input.to_pixels.apply(found.input.pixels)
    assert float((told - x).square().mean(1).min()) < 1e-6
