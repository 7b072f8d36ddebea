from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softleak.core.errors import DataError
from softleak.paper.data import mixup, one_hot, smooth

CLASSES = st.integers(2, 200)
SHARES = st.floats(0, 1)


@given(st.data(), CLASSES, SHARES)
def test_smoothing(data: st.DataObject, classes: int, epsilon: float) -> None:
    label = data.draw(st.integers(0, classes - 1))
    y = smooth(label, classes, epsilon)
    assert y.shape == (classes,)
    assert y.dtype == torch.float64
    assert y.sum().item() == pytest.approx(1, abs=1e-12)
    assert y.min() >= 0
    assert y[label] == y.max()
    others = torch.cat([y[:label], y[label + 1 :]])
    assert (others == epsilon / classes).all()


@given(st.data(), CLASSES)
def test_one_hot_is_smoothing_by_nothing(data: st.DataObject, classes: int) -> None:
    label = data.draw(st.integers(0, classes - 1))
    y = one_hot(label, classes)
    assert torch.equal(y, smooth(label, classes, 0.0))
    assert y.sum() == 1
    assert y[label] == 1


@given(SHARES, SHARES)
def test_mixing(weight: float, epsilon: float) -> None:
    x1, x2 = torch.zeros(3, 2, 2), torch.ones(3, 2, 2)
    y1, y2 = smooth(1, 4, epsilon), smooth(3, 4, epsilon)
    mixed = mixup(x1, y1, x2, y2, weight)
    torch.testing.assert_close(mixed.x, torch.full((3, 2, 2), weight))
    assert mixed.y.sum().item() == pytest.approx(1, abs=1e-12)
    # Two classes off both labels keep the smoothing's floor.
    assert mixed.y[[0, 2]].tolist() == pytest.approx([epsilon / 4] * 2)
    other = mixup(x2, y2, x1, y1, 1 - weight)
    torch.testing.assert_close(other.y, mixed.y)


def test_the_ends_of_a_mix_are_its_samples() -> None:
    x1, x2 = torch.rand(3, 2, 2), torch.rand(3, 2, 2)
    y1, y2 = one_hot(0, 3), one_hot(2, 3)
    for weight, x, y in ((0.0, x1, y1), (1.0, x2, y2)):
        mixed = mixup(x1, y1, x2, y2, weight)
        assert torch.equal(mixed.x, x)
        assert torch.equal(mixed.y, y)


def test_misfits() -> None:
    x, y = torch.zeros(3, 2, 2), one_hot(0, 3)
    with pytest.raises(DataError, match="label"):
        smooth(3, 3, 0.1)
    with pytest.raises(DataError, match="epsilon"):
        smooth(0, 3, 1.5)
    with pytest.raises(DataError, match="weight"):
        mixup(x, y, x, y, float("nan"))
    with pytest.raises(DataError, match="one shape"):
        mixup(x, y, x[:1], y, 0.5)
    with pytest.raises(DataError, match="one shape"):
        mixup(x, y, x, one_hot(0, 4), 0.5)
