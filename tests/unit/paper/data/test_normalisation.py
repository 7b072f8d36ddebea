from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softleak.core.errors import DataError
from softleak.paper.data import CIFAR10_NORM, Normalisation

MEANS = st.floats(-2, 2)
STDS = st.floats(0.01, 4)


@given(st.lists(st.tuples(MEANS, STDS), min_size=1, max_size=4), st.integers(0, 100))
def test_invert_undoes_apply(channels: list[tuple[float, float]], seed: int) -> None:
    mean, std = zip(*channels, strict=True)
    norm = Normalisation(mean, std)
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(2, len(mean), 3, 3, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(norm.invert(norm.apply(x)), x)


def test_the_mean_becomes_zero() -> None:
    x = torch.tensor(CIFAR10_NORM.mean, dtype=torch.float64).reshape(3, 1, 1)
    assert torch.equal(CIFAR10_NORM.apply(x), torch.zeros_like(x))


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 4), (4, 4, 3)])
def test_channels_must_agree(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="3, H, W"):
        CIFAR10_NORM.apply(torch.zeros(shape))


@pytest.mark.parametrize(
    ("mean", "std"),
    [((), ()), ((0.5,), (0.5, 0.5)), ((0.5,), (0.0,)), ((float("nan"),), (1.0,))],
)
def test_impossible_values(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    with pytest.raises(DataError):
        Normalisation(mean, std)
