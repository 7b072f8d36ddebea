import pytest
import torch

from softleak.errors import OptionError
from softleak.matching import L2, Box, Cosine, TotalVariation


def test_both_are_zero_for_equal_gradients_and_grow_apart():
    ours = [torch.randn(3, 4), torch.randn(5)]
    for objective in (L2(), Cosine()):
        assert float(objective.gradients(ours, ours)) == pytest.approx(0, abs=1e-6)
        assert float(objective.gradients(ours, [-g for g in ours])) > 1


def test_only_the_cosine_ignores_the_scale():
    ours = [torch.randn(3, 4), torch.randn(5)]
    scaled = [3 * g for g in ours]
    assert float(Cosine().gradients(ours, scaled)) == pytest.approx(0, abs=1e-6)
    expected = 4 * sum(float(g.square().sum()) for g in ours)
    assert float(L2().gradients(ours, scaled)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("weights", [{"alpha": -1.0}, {"beta": float("inf")}])
def test_weights_are_checked(weights):
    with pytest.raises(OptionError, match="not negative"):
        L2(**weights)


def test_total_variation_is_that_of_the_paper():
    x = torch.tensor([[[0.0, 1.0], [3.0, 6.0]]])
    across, down = (1 + 3) / 2, (3 + 5) / 2
    assert float(TotalVariation(0.5)(x)) == pytest.approx(0.5 * (across + down))


def test_the_box_costs_nothing_inside():
    x = torch.tensor([[[-1.0, 0.5], [2.0, 1.0]]])
    assert float(Box(-1, 2)(x)) == 0
    assert float(Box(0, 1)(x)) == pytest.approx((1 + 1) / 4)
    assert float(Box(torch.tensor(0.0).view(1, 1, 1), 1.0, weight=2.0)(x)) == pytest.approx(1.0)
