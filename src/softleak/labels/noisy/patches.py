"""Families as unions of simplices: what a likelihood integrates over.

Every label of a family is a mix of a few corners: ``Smoothed`` has, for each class, that class
and the flat label. The weights have a Dirichlet prior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from softleak.errors import LabelError
from softleak.labels.families import AnyLabel, Family, Mixed, OneHot, Smoothed, SmoothedMixed

FLAT = 2.0  # the prior of a smoothing by ε is (1 − ε): that of a smoothed mix, at one class


@dataclass(frozen=True, eq=False)
class Patches:
    """P simplices of labels: corners (P, d + 1, C), the flat one last if there is one.

    ``concentration`` (d + 1,) is of the prior of the weights.
    """

    corners: Tensor
    concentration: Tensor

    @property
    def origin(self) -> Tensor:
        """(P, C) the corner whose weight is what the others leave."""
        return self.corners[:, 0]

    @property
    def directions(self) -> Tensor:
        """(P, d, C) from the origin to the other corners."""
        return self.corners[:, 1:] - self.corners[:, :1]


def patches_of(family: Family, classes: int, likely: Sequence[int]) -> Patches:
    """The simplices of a known family over the classes that could be in the label."""
    match family:
        case OneHot():
            k, smoothed = 1, False
        case Smoothed():
            k, smoothed = 1, True
        case Mixed(k=k):
            smoothed = False
        case SmoothedMixed(k=k):
            smoothed = True
        case AnyLabel():
            k, smoothed, likely = classes, False, range(classes)
        case _:
            raise LabelError(
                f"the share carries noise, and labels of {family!r} are not known to be mixes of "
                "corners; give a family of softleak, or None"
            )
    sets = list(combinations(likely, min(k, len(likely))))
    corners = torch.eye(classes, dtype=torch.double)[torch.tensor(sets)]
    if smoothed and k < classes:  # else the flat label is among the mixes
        flat = torch.full((len(sets), 1, classes), 1 / classes, dtype=torch.double)
        corners = torch.cat([corners, flat], 1)
    weights = torch.ones(corners.shape[1], dtype=torch.double)
    if smoothed and k == 1:
        weights[0] = FLAT
    return Patches(corners, weights)
