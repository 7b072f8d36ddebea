from __future__ import annotations

import pytest
import torch

import softleak as sl
from benchmarks.classic import EntryByEntry, FullHead
from softleak.paper.classic import RowRatios, Variance

KINDS = [RowRatios, FullHead, EntryByEntry]


@pytest.fixture
def case(biased):
    """A row in float64 of each kind, the true label and the true searched scalar."""
    y = torch.tensor([0.05, 0.05, 0.3, 0.4, 0.1, 0.1, 0.0], dtype=torch.double)
    x = torch.randn(20, generator=torch.Generator().manual_seed(3), dtype=torch.double)
    share = sl.capture(biased, x, y)
    rows = [kind.of(biased, share) for kind in KINDS]
    p = biased(x).softmax(-1)
    return rows, y, 1 / (p - y)[rows[0].index].detach()


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_truth_at_the_true_scalar(kind, case):
    rows, y, scalar = case
    assert torch.allclose(rows[kind].labels(scalar[None])[0], y, rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_theorem_1(kind, case):
    scalars = torch.tensor([-50.0, -1.0, 0.01, 3.0, 80.0], dtype=torch.double)
    sums = case[0][kind].labels(scalars).sum(-1)
    assert torch.allclose(sums, torch.ones_like(sums), rtol=0, atol=1e-10)


def test_all_evaluate_the_same_function(case):
    scalars = torch.tensor([-9.0, -2.0, 0.5, 1.0, 7.0], dtype=torch.double, requires_grad=True)
    values, slopes = [], []
    for row in case[0]:
        losses = Variance(2)(row.labels(scalars))
        values.append(losses.detach())
        slopes.append(torch.autograd.grad(losses.sum(), scalars)[0])
    for found in (values, slopes):
        assert torch.allclose(found[0], found[1], rtol=1e-9)
    assert torch.allclose(values[0], values[2], rtol=1e-9)


def test_full_head_keeps_the_dtype_of_the_share(lenet, smoothed):
    one = torch.ones(1)
    assert FullHead.of(lenet, smoothed[0]).labels(one).dtype is torch.float32
    assert RowRatios.of(lenet, smoothed[0]).labels(one).dtype is torch.float64


def test_row_is_the_one_of_largest_sum(lenet, smoothed):
    G = smoothed[0]["classifier.weight"]
    row = RowRatios.of(lenet, smoothed[0])
    assert row.index == int(G.sum(1).abs().argmax())
    assert torch.equal(row.g, G[row.index])
    assert torch.allclose(row.ratios[:, None] * row.g, G, rtol=1e-5, atol=1e-9)


def test_no_row_without_a_gradient(lenet, silent):
    assert RowRatios.of(lenet, silent) is None
