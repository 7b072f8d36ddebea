from __future__ import annotations

import pytest
import torch

import softleak as sl
from softleak.core.errors import MissingGradient, ShareError
from softleak.paper.classic import ClassicOutcome, bias_ratio


@pytest.mark.parametrize("seed", range(5))
def test_exact_for_any_label(biased, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(20, generator=generator, dtype=torch.double)
    y = torch.rand(7, generator=generator, dtype=torch.double)
    y = y / y.sum()
    result = bias_ratio(biased, sl.capture(biased, x, y))
    assert torch.allclose(result.label, y, rtol=0, atol=1e-13)
    assert torch.allclose(result.feature, biased[:2](x).detach(), rtol=1e-10, atol=1e-14)
    delta = biased(x).detach().softmax(-1) - y
    assert result.scalar == pytest.approx(1 / float(delta[result.row]))
    assert result.row == int(delta.abs().argmax())
    assert result.evaluations == 0


def test_zero_gradient(biased):
    zeros = {name: torch.zeros_like(p) for name, p in biased.named_parameters()}
    result = bias_ratio(biased, sl.GradientShare(zeros))
    assert result.outcome is ClassicOutcome.ZERO_GRADIENT
    assert result.label is None


def test_needs_a_bias(lenet, smoothed, biased):
    with pytest.raises(MissingGradient, match="head's bias"):
        bias_ratio(lenet, smoothed[0])
    share = sl.capture(biased, torch.ones(20), 1)
    with pytest.raises(MissingGradient, match=r"2\.bias"):
        bias_ratio(biased, share.without("2.bias"))
    with pytest.raises(ShareError, match="of this model"):
        bias_ratio(biased, share.map(lambda name, g: g[:3] if name == "2.bias" else g))
