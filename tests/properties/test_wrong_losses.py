"""No label is UNIQUE and wrong, whatever loss a client minimised and whatever loss is stated."""

from __future__ import annotations

import pytest

import softleak as sl
from benchmarks.losses import SHARES_OF_ONE, asked_of


def wrong(number: int) -> list[str]:
    """Return what was asked of a share where the answer is UNIQUE and further off than it says."""
    found = []
    for asked, answer, y in asked_of(number):
        if answer.status is sl.Status.UNIQUE:
            assert answer.label is not None
            off = float((answer.label.double() - y.double()).abs().sum())
            if off > max(answer.error, 1e-3):
                found.append(f"{asked}: off by {off:.2g}, claimed {answer.error:.2g}")
    return found


FAST, ALL = 2, 200  # networks of ten shares, each asked five times


@pytest.mark.parametrize("network", range(FAST))
def test_no_label_is_unique_and_wrong(network):
    first = network * SHARES_OF_ONE
    assert not [text for number in range(first, first + SHARES_OF_ONE) for text in wrong(number)]


@pytest.mark.slow
@pytest.mark.parametrize("network", range(FAST, ALL))
def test_no_label_of_any_network_is_unique_and_wrong(network):
    first = network * SHARES_OF_ONE
    assert not [text for number in range(first, first + SHARES_OF_ONE) for text in wrong(number)]
