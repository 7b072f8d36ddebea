"""Levels of 8-bit images: found where all pixels lie on them, and nowhere else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from softleak.inversion.patches import levels_of


def pixels(seed: int, count: int = 400) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(20, 240, (count,), generator=generator).double()


@pytest.mark.parametrize("seed", range(5))
def test_the_first_level_and_the_step_are_found(seed: int) -> None:
    noise = torch.randn(400, generator=torch.Generator().manual_seed(seed)).double()
    values = -1.7 + 0.016 * pixels(seed) + 1e-4 * noise
    found = levels_of(values, 1e-4)
    assert found is not None
    assert found.step == pytest.approx(0.016, rel=1e-4)
    assert found.first == pytest.approx(-1.7 + 0.016 * float(pixels(seed).min()), abs=1e-4)


def test_levels_that_are_never_neighbours_are_found() -> None:
    few = torch.tensor([0, 3, 5, 9, 12, 14, 21, 26, 33, 40, 55, 70, 81, 99, 120, 133, 190]).double()
    found = levels_of(0.5 + 0.01 * few, 1e-5)
    assert found is not None
    assert found.step == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("error", [1e-12, 1e-6, 1e-3])
def test_values_on_no_levels_have_none(error: float) -> None:
    generator = torch.Generator().manual_seed(0)
    assert levels_of(torch.rand(200, generator=generator).double(), error) is None
    assert levels_of(0.3 * pixels(1) + 0.7 * pixels(2) * 1.0001, error) is None


def test_one_pixel_beside_the_levels_is_enough_against_them() -> None:
    values = 0.016 * pixels(3)
    assert levels_of(values, 1e-4) is not None
    values[7] += 0.006
    assert levels_of(values, 1e-4) is None


def test_blurred_and_few_levels_are_not_believed() -> None:
    assert levels_of(0.016 * pixels(4), 1e-3) is None
    assert levels_of(0.016 * (pixels(4) % 10), 1e-6) is None
