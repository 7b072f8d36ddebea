from itertools import permutations

import pytest
import torch

from softleak.audit.metrics import paired_psnr, pairing, psnr
from softleak.core.errors import DataError


@pytest.mark.parametrize("columns", [4, 6])
def test_the_pairing_is_the_best_of_all(columns):
    generator = torch.Generator().manual_seed(columns)
    for _ in range(20):
        cost = torch.randn(4, columns, generator=generator).double()
        found = pairing(cost)
        rows = range(4)
        best = min(
            float(cost[rows, list(order)].sum()) for order in permutations(range(columns), 4)
        )
        assert len(set(found)) == 4
        assert float(cost[rows, found].sum()) == pytest.approx(best, abs=1e-12)


def test_equal_costs_and_an_order_are_undone():
    assert sorted(pairing(torch.zeros(5, 5))) == list(range(5))
    order = torch.tensor([2, 0, 3, 1])
    assert pairing(-torch.eye(4)[order]) == order.tolist()


def test_images_are_paired_with_their_own():
    generator = torch.Generator().manual_seed(0)
    truths = torch.rand(3, 1, 4, 4, generator=generator)
    images = (truths + 0.01 * torch.randn(truths.shape, generator=generator)).clamp(0, 1)
    found = paired_psnr(images[[2, 0, 1]], truths)
    assert found == [psnr(image, truth) for image, truth in zip(images, truths, strict=True)]


@pytest.mark.parametrize("cost", [torch.zeros(3, 2), torch.tensor([[float("nan")]]), torch.ones(3)])
def test_costs_that_cannot_be_paired(cost):
    with pytest.raises(DataError, match="finite costs"):
        pairing(cost)
