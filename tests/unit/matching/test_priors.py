import pytest
import torch

from softleak.matching import Box, TotalVariation


def test_total_variation_is_that_of_the_paper():
    x = torch.tensor([[[0.0, 1.0], [3.0, 6.0]]])
    across, down = (1 + 3) / 2, (3 + 5) / 2
    assert float(TotalVariation(0.5)(x)) == pytest.approx(0.5 * (across + down))


def test_the_box_costs_nothing_inside():
    x = torch.tensor([[[-1.0, 0.5], [2.0, 1.0]]])
    assert float(Box(-1, 2)(x)) == 0
    assert float(Box(0, 1)(x)) == pytest.approx((1 + 1) / 4)
    assert float(Box(torch.tensor(0.0).view(1, 1, 1), 1.0, weight=2.0)(x)) == pytest.approx(1.0)


def test_total_variation_ignores_shifts_and_reflections_and_grows_with_contrast():
    x = torch.rand(3, 5, 7, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    prior = TotalVariation()
    expected = pytest.approx(float(prior(x)))
    assert float(prior(x + 4)) == expected
    assert float(prior(-x)) == expected
    assert float(prior(x.flip(1, 2))) == expected
    assert float(prior(x.mT)) == expected
    assert float(prior(3 * x)) / 3 == expected


@pytest.mark.parametrize("shape", [(), (1,), (4, 1, 1)])
def test_total_variation_of_inputs_without_neighbours_is_zero(shape):
    assert float(TotalVariation()(torch.ones(shape))) == 0


def test_the_box_pushes_back_what_is_outside():
    x = torch.tensor([[[-2.0, 0.5, 3.0]]], requires_grad=True)
    Box(0.0, 1.0)(x).backward()
    assert x.grad.sign().flatten().tolist() == [-1, 0, 1]


def test_the_box_takes_an_interval_per_channel():
    x = torch.stack([torch.zeros(2, 2), torch.full((2, 2), 5.0)])
    low, high = (torch.tensor(ends).view(2, 1, 1) for ends in ([-1.0, 4.0], [1.0, 6.0]))
    assert float(Box(low, high)(x)) == 0
    assert float(Box(low, high)(x.flip(0))) > 0
