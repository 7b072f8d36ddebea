import pytest
import torch

from softleak.core.errors import OptionError
from softleak.matching import L2, Cosine


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
