from __future__ import annotations

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.core.errors import MissingGradient, ShareError
from softleak.core.factors import factor, numerical_rank

HEAD = sl.Head.of(nn.Linear(30, 7, bias=False))


def share(G: torch.Tensor) -> sl.GradientShare:
    return sl.GradientShare({"weight": G})


def test_agrees_with_the_svd():
    G = torch.outer(torch.randn(7), torch.rand(30))
    factors = factor(HEAD, [share(G)])
    u, s, vh = torch.linalg.svd(G.double())
    torch.testing.assert_close(factors.sigma[0], s[0], rtol=1e-6, atol=0)
    sign = torch.sign(u[:, 0] @ factors.u[0])
    torch.testing.assert_close(factors.u[0], sign * u[:, 0], rtol=0, atol=1e-6)
    torch.testing.assert_close(factors.v[0], sign * vh[0], rtol=0, atol=1e-6)
    assert factors.rank_one.all()
    assert factors.v.sum() >= 0


@pytest.mark.parametrize("samples", [2, 3, 6])
def test_rank_bounds_the_number_of_samples(samples):
    G = sum(torch.outer(torch.randn(7), torch.randn(30)) for _ in range(samples))
    factors = factor(HEAD, [share(G)])
    assert not factors.rank_one.any()
    assert numerical_rank(HEAD, share(G), factors.relative) == samples


def test_zero_is_zero():
    assert factor(HEAD, [share(torch.zeros(7, 30))]).zero.all()


def test_known_rounding_explains_a_residual():
    G = torch.outer(torch.randn(7), torch.rand(30)).double()
    noisy = G + 1e-4 * (2 * torch.rand_like(G) - 1)
    assert not factor(HEAD, [share(noisy)]).rank_one.any()
    told = sl.GradientShare({"weight": noisy}, rounding={"weight": 1e-4})
    assert factor(HEAD, [told]).rank_one.all()


def test_missing_or_misshapen_head_gradients_are_named():
    with pytest.raises(MissingGradient, match="lacks 'weight'"):
        factor(HEAD, [sl.GradientShare({"other": torch.ones(2)})])
    with pytest.raises(ShareError, match=r"\(7, 30\)"):
        factor(HEAD, [share(torch.ones(30, 7))])
