from __future__ import annotations

import pytest
import torch

import softleak as sl
from softleak.core.errors import LabelError
from softleak.core.families import Simplices

FAMILIES = [
    sl.OneHot(),
    sl.Smoothed(),
    sl.Mixed(2),
    sl.Mixed(3),
    sl.SmoothedMixed(2),
    sl.AnyLabel(),
]


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_every_mix_of_corners_is_a_member(family):
    simplices = family.simplices(6, range(6))
    weights = torch.rand(len(simplices.corners), simplices.corners.shape[1], dtype=torch.double)
    weights = weights / weights.sum(-1, keepdim=True)
    labels = (weights[:, None] @ simplices.corners)[:, 0]
    assert torch.allclose(labels.sum(-1), torch.ones(len(labels)).double())
    assert torch.allclose(family.project(labels), labels, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("family", "shape"),
    [
        (sl.OneHot(), (6, 1, 6)),
        (sl.Smoothed(), (6, 2, 6)),
        (sl.Mixed(2), (15, 2, 6)),
        (sl.SmoothedMixed(2), (15, 3, 6)),
        (sl.SmoothedMixed(6), (1, 6, 6)),
        (sl.AnyLabel(), (1, 6, 6)),
    ],
    ids=str,
)
def test_there_is_a_simplex_for_every_set_of_classes(family, shape):
    assert tuple(family.simplices(6, range(6)).corners.shape) == shape


def test_only_likely_classes_are_looked_at_unless_any_label_is_possible():
    assert len(sl.Smoothed().simplices(100, [3, 50]).corners) == 2
    assert sl.AnyLabel().simplices(5, [3]).corners.shape == (1, 5, 5)


def test_origin_and_directions_make_the_corners():
    simplices = sl.SmoothedMixed(2).simplices(4, range(4))
    again = simplices.origin[:, None] + simplices.directions
    assert torch.equal(again, simplices.corners[:, 1:])


@pytest.mark.parametrize(
    ("corners", "concentration", "words"),
    [
        (torch.eye(3), torch.ones(3), "simplices, corners, classes"),
        (torch.eye(3)[None], torch.ones(2), "one concentration per corner"),
        (torch.eye(3)[None], torch.tensor([1.0, 1.0, 0.5]), "whole concentrations"),
    ],
)
def test_malformed_simplices_are_refused(corners, concentration, words):
    with pytest.raises(LabelError, match=words):
        Simplices(corners, concentration)
