from __future__ import annotations

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.core.errors import HeadNotFound
from softleak.core.head import column_sums, find_head, product_and_sums, times_vector, vector_times
from softleak.paper import models


class HeadFirst(nn.Module):
    """Defines its head before the layer that feeds it, under a name nobody would guess."""

    def __init__(self) -> None:
        super().__init__()
        self.zebra = nn.Linear(16, 4)
        self.fc = nn.Linear(8, 16)

    def forward(self, x):
        return self.zebra(self.fc(x).relu())


def test_found_by_what_it_does_not_by_name_or_order():
    assert find_head(HeadFirst(), shape=(8,)).name == "zebra"
    assert find_head(HeadFirst()).name == "zebra"  # the input's shape is inferred


@pytest.mark.parametrize("name", sorted(models.MODELS))
def test_found_in_every_model(name):
    spec = models.MODELS[name]
    model = spec().eval()
    assert find_head(model, shape=spec.input_shape).W.shape[0] in (10, 17, 1000)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rows", [3, 700])  # one block, and several of which the last is shorter
def test_products_in_blocks_are_those_of_the_whole_matrix(dtype, rows):
    M = torch.randn(rows, 1000).to(dtype)
    x, y = torch.randn(1000, dtype=torch.double), torch.randn(rows, dtype=torch.double)
    whole = M.double()
    product, sums = product_and_sums(M, x)
    for found, expected in (
        (product, whole @ x), (sums, whole.sum(0)), (times_vector(M, x), whole @ x),
        (vector_times(y, M), y @ whole), (column_sums(M), whole.sum(0)),
    ):  # fmt: skip
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-11)


def test_may_be_named():
    head = sl.Head.of(HeadFirst(), "fc")
    assert head.weight_name == "fc.weight"
    assert head.has_bias
    with pytest.raises(HeadNotFound, match=r"zebra, fc"):
        sl.Head.of(HeadFirst(), "classifier")


def test_a_bare_linear_is_its_own_head():
    head = sl.Head.of(nn.Linear(5, 3, bias=False))
    assert (head.weight_name, head.classes, head.has_bias) == ("weight", 3, False)
    assert not head.b.any()


def test_a_single_output_has_a_head():
    for model in (nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1)), nn.Linear(16, 1)):
        assert find_head(model, shape=(16,)).classes == 1
    with pytest.raises(HeadNotFound, match="not that of a linear layer"):
        find_head(nn.Sequential(nn.Linear(16, 1), nn.Sigmoid()), shape=(16,))


def test_a_head_without_memory_has_its_name():
    with torch.device("meta"):
        head = sl.Head.of(HeadFirst())
    assert (head.name, head.classes, head.has_bias) == ("fc", 16, True)


def test_models_without_a_linear_head_are_refused():
    with pytest.raises(HeadNotFound, match=r"has no nn\.Linear"):
        sl.Head.of(nn.Sequential(nn.Conv2d(3, 10, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    softmaxed = nn.Sequential(nn.Linear(8, 4), nn.Softmax(-1))
    with pytest.raises(HeadNotFound, match=r"straight from an nn\.Linear"):
        find_head(softmaxed, None, (8,))
