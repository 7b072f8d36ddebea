from __future__ import annotations

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.core.errors import ModelError, ShareError
from softleak.paper import data, models
from softleak.paper.classic import bias_attack, one_index


def test_one_index_a_layer_finds_the_input_of_a_bias_free_net(draw):
    model = models.mlp(3072, (512, 256), bias=False).eval()
    chain = sl.Chain.of(model, sl.Head.of(model), (3, 32, 32))
    for sample in draw(data.Smoothing(), 2):
        share = sl.capture(model, sample.x, sample.y)
        recovery = sl.recover_label(model, share)
        found = one_index(chain, share, recovery).view_as(sample.x)
        ours = sl.invert(model, share, recovery, chain=chain).input.view_as(sample.x)
        assert float((found - sample.x).abs().max()) < 1e-4
        assert (ours - sample.x).norm() < (found - sample.x).norm()


def test_one_index_knows_no_convolutions(draw, trained):
    (sample,) = draw(data.Smoothing(), 1)
    chain = sl.Chain.of(trained, sl.Head.of(trained), (3, 32, 32))
    share = sl.capture(trained, sample.x, sample.y)
    with pytest.raises(ModelError, match=r"features\.4.*gradient matching"):
        one_index(chain, share, sl.recover_label(trained, share))


def test_a_bias_gives_the_input_away(draw):
    model = models.mlp(3072, (512, 256), bias=True).eval()
    (sample,) = draw(data.Mixup(), 1)
    share = sl.capture(model, sample.x, sample.y)
    found = bias_attack(model, share).view_as(sample.x)
    assert float((found - sample.x).abs().max()) < 1e-5


def test_no_bias_no_bias_attack():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3, bias=False))
    share = sl.capture(model, torch.randn(3, 2, 2), 1)
    with pytest.raises(ShareError, match="bias"):
        bias_attack(model, share)
