from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import softleak as sl
from softleak.core.errors import LabelError
from softleak.core.families import KNOWN_FAMILIES
from softleak.labels.curve import distance, root_mean_square
from softleak.paper.data import smooth


def mix(k: int, floor: float, classes: int = 10) -> torch.Tensor:
    weights = torch.rand(k, dtype=torch.double) + 0.1
    y = torch.full((classes,), floor, dtype=torch.double)
    y[torch.randperm(classes)[:k]] += weights / weights.sum() * (1 - classes * floor)
    return y


MEMBERS = [
    (sl.OneHot(), lambda: smooth(3, 10, 0.0)),
    (sl.Smoothed(), lambda: smooth(3, 10, 0.3)),
    (sl.Mixed(2), lambda: mix(2, 0.0)),
    (sl.Mixed(3), lambda: mix(3, 0.0)),
    (sl.SmoothedMixed(2), lambda: mix(2, 0.02)),
    (sl.SmoothedMixed(3), lambda: mix(3, 0.02)),
    (sl.AnyLabel(), lambda: torch.rand(10, dtype=torch.double).softmax(0)),
]


@pytest.mark.parametrize(("family", "member"), MEMBERS)
def test_members_are_their_own_nearest(family, member):
    y = member()
    torch.testing.assert_close(family.project(y), y, rtol=0, atol=1e-15)
    assert isinstance(family, sl.Family)


@pytest.mark.parametrize("family", [sl.Smoothed(), sl.SmoothedMixed(2), sl.SmoothedMixed(3)])
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_a_family_measures_what_its_nearest_member_leaves(family, classes):
    """In one go as in two: with ties, negative entries, and entries that are exact."""
    generator = torch.Generator().manual_seed(classes)
    y = torch.randn(200, classes, generator=generator, dtype=torch.double)
    y[50:100] = y[50:100].round()  # many ties
    y[100:150, 1:] = -y[100:150, 1:].abs()  # a second entry below the floor
    error = torch.rand(200, classes, generator=generator, dtype=torch.double) + 1e-3
    error[150:, 0] = 1e-300
    expected = root_mean_square(*distance(family, y, error))
    torch.testing.assert_close(family.misfit(y, error), expected, rtol=1e-9, atol=1e-9)
    far = torch.linalg.vector_norm(y - family.project(y), dim=-1)
    torch.testing.assert_close(family.distance(y), far, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("family", [sl.Smoothed(), sl.SmoothedMixed(2), sl.SmoothedMixed(3)])
@pytest.mark.parametrize("entries", [4, 10, 40])
def test_some_entries_never_promise_a_larger_misfit_than_all(family, entries):
    """With ties, negative entries, entries that are exact, and labels next to the family."""
    generator = torch.Generator().manual_seed(entries)
    y = torch.randn(400, 40, generator=generator, dtype=torch.double)
    y[50:100] = y[50:100].round()
    y[100:150] = -y[100:150].abs()
    y[150:200, 1:] = -y[150:200, 1:].abs()
    y[200:250] = 0.01 + 1e-9 * y[200:250]
    error = 10.0 ** torch.empty_like(y).uniform_(-9, 0, generator=generator)
    error[250:300, ::7] = 1e-300
    least = family.least_misfit(y[:, :entries], error[:, :entries], 40)
    assert (least <= family.misfit(y, error) * (1 + 1e-9)).all()
    assert (least > 0).any()


@pytest.mark.parametrize(("family", "member"), MEMBERS[:-1])
def test_arbitrary_labels_are_no_members(family, member):
    y = torch.rand(10, dtype=torch.double).softmax(0)
    assert (family.project(y) - y).abs().max() > 1e-3


@pytest.mark.parametrize(("family", "member"), MEMBERS)
def test_projection_is_idempotent_and_batched(family, member):
    y = torch.randn(4, 5, 10, dtype=torch.double)
    once = family.project(y)
    torch.testing.assert_close(family.project(once), once)
    torch.testing.assert_close(once[2, 3], family.project(y[2, 3]))


@given(st.permutations(range(10)))
def test_projection_does_not_care_for_the_order_of_classes(order):
    y = torch.linspace(-0.2, 0.9, 10, dtype=torch.double)
    for family, _ in MEMBERS:
        torch.testing.assert_close(family.project(y[list(order)]), family.project(y)[list(order)])


def test_no_member_has_a_negative_floor():
    y = torch.tensor([1.9] + [-0.1] * 9, dtype=torch.double)
    assert (sl.Smoothed().project(y)[1:] == 0).all()


def test_the_widest_known_family_holds_the_others():
    for _, member in MEMBERS[:3]:
        y = member()
        torch.testing.assert_close(KNOWN_FAMILIES[-1].project(y), y, rtol=0, atol=1e-15)


def test_at_least_one_class_is_free():
    with pytest.raises(LabelError, match="k=0"):
        sl.Mixed(0)
