from __future__ import annotations

import pytest
import torch

import softleak as sl
from softleak.core.errors import LabelError
from softleak.core.families import simplices_of
from softleak.labels.curve import distance, root_mean_square, spread_of, unfit_of


class Bare:
    """Nothing but what the contract requires: the mean over all entries."""

    def project(self, y: torch.Tensor) -> torch.Tensor:
        return y.mean(-1, keepdim=True).expand_as(y)


def test_project_is_all_that_is_required():
    assert isinstance(Bare(), sl.Family)
    y = torch.tensor([0.2, 0.4], dtype=torch.double)
    error = torch.full_like(y, 0.1)
    rest, off = distance(Bare(), y, error)
    assert torch.allclose(y - rest, torch.full_like(y, 0.3))
    assert torch.allclose(off - error, torch.full_like(y, 0.1))
    assert float(unfit_of(Bare(), y, error)) == float(root_mean_square(rest, off))
    assert float(spread_of(Bare(), y, torch.ones(()))) == pytest.approx(0.1 * 2**0.5)


def test_what_a_family_offers_is_used():
    assert sl.Mixed(3).simpler == sl.Mixed(2)
    assert sl.Mixed(1).simpler is None
    y = torch.tensor([0.9, 0.05, 0.01], dtype=torch.double)
    error = torch.tensor([1e-9, 1e-9, 1.0], dtype=torch.double)
    rest, _ = distance(sl.Smoothed(), y, error)
    assert float((y - rest)[2]) == pytest.approx(0.05)  # the exact entry decides, not the mean 0.03


def test_missing_simplices_are_named_with_what_to_add():
    with pytest.raises(
        LabelError, match=r"no method `simplices`. Add simplices\(classes, likely\)"
    ):
        simplices_of(Bare(), 3, range(3))


def test_simplices_have_to_be_of_the_right_kind():
    class Odd(Bare):
        def simplices(self, classes: int, likely: object) -> object:
            return torch.eye(classes)

    with pytest.raises(LabelError, match="of 3 classes, got Tensor"):
        simplices_of(Odd(), 3, range(3))
