import pytest
import torch

from softleak.core.errors import OptionError
from softleak.matching import Image, Noise


def test_noise_is_the_same_for_all_and_new_for_every_attempt_and_seed():
    first, again, other = (Noise(4).draw((2, 3), attempt) for attempt in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    drawn = {tuple(Noise(s).draw((3,), a).tolist()) for s in range(5) for a in range(9)}
    assert len(drawn) == 45


def test_noise_is_standard_normal():
    drawn = Noise().draw((20_000,), 0)
    assert float(drawn.mean()) == pytest.approx(0, abs=0.05)
    assert float(drawn.std()) == pytest.approx(1, abs=0.05)
    assert not Noise().near


def test_an_image_is_kept_to_the_last_digit_and_followed_by_noise():
    x = torch.rand(1, 3, 3, dtype=torch.double)
    assert Image(x).near
    assert torch.equal(Image(x).draw((1, 3, 3), 0), x)
    assert torch.equal(Image(x).draw((1, 3, 3), 2), Noise().draw((1, 3, 3), 2))


def test_an_image_that_does_not_fit_is_refused():
    with pytest.raises(OptionError, match=r"shape \(3, 3\), got \(2, 2\)"):
        Image(torch.zeros(2, 2)).draw((3, 3), 0)
    with pytest.raises(OptionError, match="NaN"):
        Image(torch.full((3, 3), torch.nan)).draw((3, 3), 0)
