from __future__ import annotations

import pytest

import softleak as sl
from benchmarks.classic import one_index
from softleak.core.errors import ModelError
from softleak.paper import data, models


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
