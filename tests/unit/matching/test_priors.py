import pytest
import torch

from softleak.matching import TotalVariation


def test_total_variation_is_that_of_the_paper():
    x = torch.tensor([[[0.0, 1.0], [3.0, 6.0]]])
    across, down = (1 + 3) / 2, (3 + 5) / 2
    assert float(TotalVariation(0.5)(x)) == pytest.approx(0.5 * (across + down))


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
