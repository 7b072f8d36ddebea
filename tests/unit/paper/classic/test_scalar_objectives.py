from __future__ import annotations

import pytest
import torch

import softleak as sl
from softleak.paper.classic import FullHead, RowRatios, Variance, Vectorised

KINDS = [FullHead, Vectorised]


@pytest.fixture(params=[1.0, 4.0])
def case(request, biased):
    """A row in float64, the true label and the true searched scalar."""
    y = torch.tensor([0.05, 0.05, 0.3, 0.4, 0.1, 0.1, 0.0], dtype=torch.double)
    x = torch.randn(20, generator=torch.Generator().manual_seed(3), dtype=torch.double)
    row = RowRatios.of(biased, sl.capture(biased, x, y), coefficient=request.param)
    p = biased(x).softmax(-1)
    return row, y, request.param / (p - y)[row.index].detach()


@pytest.mark.parametrize("kind", KINDS)
def test_truth_at_the_true_scalar(kind, case):
    row, y, scalar = case
    assert torch.allclose(kind(row, Variance()).label(scalar), y, rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_theorem_1(kind, case):
    objective = kind(case[0], Variance())
    for scalar in torch.tensor([-50.0, -1.0, 0.01, 3.0, 80.0], dtype=torch.double):
        assert float(objective.label(scalar).sum()) == pytest.approx(1, abs=1e-10)


def test_both_evaluate_the_same_function(case):
    scalars = torch.tensor([-9.0, -2.0, 0.5, 1.0, 7.0], dtype=torch.double, requires_grad=True)
    values, slopes = [], []
    for kind in KINDS:
        losses = kind(case[0], Variance(2))(scalars)
        values.append(losses.detach())
        slopes.append(torch.autograd.grad(losses.sum(), scalars)[0])
    assert torch.allclose(*values, rtol=1e-9)
    assert torch.allclose(*slopes, rtol=1e-9)


def test_full_head_keeps_the_dtype_of_the_share(lenet, smoothed):
    row = RowRatios.of(lenet, smoothed[0])
    assert FullHead(row, Variance()).label(torch.tensor(1.0)).dtype is torch.float32
    assert Vectorised(row, Variance()).label(torch.tensor(1.0)).dtype is torch.float64


def test_row_is_the_one_of_largest_sum(lenet, smoothed):
    G = smoothed[0]["classifier.weight"]
    row = RowRatios.of(lenet, smoothed[0], coefficient=4.0)
    assert row.index == int(G.sum(1).abs().argmax())
    assert torch.equal(row.g, G[row.index] / 4)
    assert torch.allclose(row.ratios[:, None] * row.g, G, rtol=1e-5, atol=1e-9)


def test_no_row_without_a_gradient(lenet, silent):
    assert RowRatios.of(lenet, silent) is None
