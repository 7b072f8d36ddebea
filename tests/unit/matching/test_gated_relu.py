"""Masks as unknowns: a small ReLU network is solved from a near start, which held masks fail at."""

from __future__ import annotations

import math

import torch
from torch import nn

import softleak as sl
from benchmarks.gauss_newton_relu import GatedShare, MaskSearch, attempt
from benchmarks.gauss_newton_wrong import SHAPE, SmallResidual


def test_a_gated_network_at_its_own_masks_sends_what_the_relu_sends():
    sent = GatedShare(pooled=True, seed=0)
    plain = SmallResidual(nn.ReLU).double().eval()
    plain.load_state_dict(sent.model.state_dict())
    x = torch.randn(math.prod(SHAPE), generator=torch.Generator().manual_seed(0)).double()
    y = torch.tensor([[0.7, 0.1, 0.2, 0.0]], dtype=torch.double)
    share = sl.capture(plain, x.view(SHAPE), y[0])
    known = torch.cat([share[name].reshape(-1) for name in sent.parameters])
    assert torch.allclose(sent.rows(x, y, sent.masks(x)), known, rtol=1e-9, atol=1e-12)


def test_unknown_masks_solve_what_held_masks_do_not():
    quality, explained = attempt(False, 0, 30.0, MaskSearch(0.5))
    assert explained
    assert quality > 100
    quality, explained = attempt(False, 0, 30.0, MaskSearch(0.0))
    assert not explained
    assert quality < 60
