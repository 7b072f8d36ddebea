from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.core import factors as factors_module
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


@pytest.fixture
def factored(monkeypatch):
    """Return the number of gradients in each call of the computation itself."""
    calls: list[int] = []
    compute = factors_module._factor

    def counted(gradients):
        calls.append(len(gradients))
        return compute(gradients)

    monkeypatch.setattr(factors_module, "_factor", counted)
    return calls


def rank_one_shares(count: int) -> list[sl.GradientShare]:
    return [share(torch.outer(torch.randn(7), torch.rand(30))) for _ in range(count)]


def assert_same(one: factors_module.Factors, other: factors_module.Factors) -> None:
    for name in ("u", "sigma", "v", "residual", "absolute", "explained", "sums"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-12, atol=1e-15)
    assert (one.relative, one.tiny) == (other.relative, other.tiny)


def test_a_share_is_factored_once_whoever_asks(factored):
    shares = rank_one_shares(5)
    alone = factor(HEAD, shares[2:3])
    every = factor(HEAD, shares)
    assert factored == [1, 4]
    assert_same(every.take(torch.tensor([2])), alone)
    again = factor(HEAD, shares)
    assert_same(again, every)
    assert_same(factor(HEAD, [shares[4], shares[1]]), every.take(torch.tensor([4, 1])))
    assert_same(factor(sl.Head.of(nn.Linear(30, 7, bias=False)), shares), every)
    assert factored == [1, 4]
    assert_same(factor(HEAD, [share(one["weight"]) for one in shares]), every)
    assert factored == [1, 4, 5]  # another share is another answer


def test_another_resolution_is_another_answer(factored):
    (one,) = rank_one_shares(1)
    factor(HEAD, [one])
    factor(sl.Head.of(nn.Linear(30, 7, bias=False).half()), [one])
    factor(HEAD, [replace(one, precision="tf32")])
    assert factored == [1, 1, 1]


def test_a_batch_is_factored_in_one_piece(factored):
    factor(HEAD, rank_one_shares(50))
    assert factored == [50]
