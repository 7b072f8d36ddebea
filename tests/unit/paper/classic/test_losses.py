from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softleak.core.errors import LabelError
from softleak.paper.classic import Variance

SMOOTHED = torch.tensor([0.1, 0.1, 0.7, 0.1], dtype=torch.double)
MIXED = torch.tensor([0.0, 0.4, 0.0, 0.6, 0.0], dtype=torch.double)
ANY = torch.tensor([0.5, 0.1, 0.4, -0.2, 0.2], dtype=torch.double)
LOSSES = [Variance(1), Variance(2)]


@pytest.mark.parametrize(
    ("loss", "y", "value"),
    [
        (Variance(1), SMOOTHED, 0.0),
        (Variance(2), MIXED, 0.0),
        # Eq. 5 by hand: the rest is (0.1, −0.2, 0.2), mean 1/30, divided by its count.
        (Variance(2), ANY, 1000 * (0.09 / 3 - 1 / 900)),
        (Variance(2, scale=1.0), ANY, 0.09 / 3 - 1 / 900),
    ],
)
def test_value(loss, y, value):
    assert float(loss(y)) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
@given(order=st.permutations(range(5)))
def test_classes_have_no_order(loss, order):
    assert torch.allclose(loss(ANY), loss(ANY[list(order)]), rtol=1e-12, atol=0)


@pytest.mark.parametrize("loss", LOSSES)
def test_batch_is_one_at_a_time(loss):
    batch = torch.stack([MIXED, ANY])
    assert torch.equal(loss(batch), torch.stack([loss(y) for y in batch]))


@pytest.mark.parametrize("loss", [Variance(0), Variance(4)])
def test_exclusion_set_must_leave_something(loss):
    with pytest.raises(LabelError, match="excluded classes"):
        loss(ANY)
