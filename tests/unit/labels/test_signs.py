"""A pattern of signs is told from a gradient, also where a few entries are of another size."""

from __future__ import annotations

import pytest
import torch

from softleak.labels.otherwise import is_sign_pattern


def pattern(others: int, size: float) -> torch.Tensor:
    """Return 200 entries of one size, some zeros, and some others."""
    made = torch.full((240,), 0.3, dtype=torch.double)
    made[::2] *= -1
    made[:40] = 0
    made[40 : 40 + others] *= size
    return made.reshape(10, 24)


@pytest.mark.parametrize("size", [0.03, 0.5, 0.9])
def test_up_to_a_tenth_of_the_entries_may_be_smaller(size):
    assert is_sign_pattern(pattern(20, size))
    assert not is_sign_pattern(pattern(21, size))


def test_entries_next_to_zero_belong_to_a_pattern():
    assert is_sign_pattern(pattern(100, 0.01))


def test_a_larger_entry_ends_it():
    assert not is_sign_pattern(pattern(1, 1.1))


def test_gradients_are_no_pattern():
    random = torch.Generator().manual_seed(0)
    assert not is_sign_pattern(torch.randn(10, 24, generator=random))
    assert not is_sign_pattern(torch.zeros(10, 24))
    assert not is_sign_pattern(torch.zeros(0))
