"""This module lists the labels that a sample may have: ``y = y0 + T c`` for each set of classes.

A smoothed label of class k is ``e_k + c (1/C − e_k)``, a mix of two is ``e_k + c (e_j − e_k)``:
each family is a union of such flats, and only their coefficients ``c`` are unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from torch import Tensor

from softleak.families import Family, Mixed, OneHot, Smoothed, SmoothedMixed


@dataclass(frozen=True, eq=False)
class Supports:
    """These are flats of labels: ``y = origin + directions c``.

    Attributes:
        classes: the classes that each flat is spanned by.
        origin: (N, C) one label of each flat.
        directions: (N, C, K) the directions of each flat; none for one-hot labels.
    """

    classes: tuple[tuple[int, ...], ...]
    origin: Tensor
    directions: Tensor

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def unknowns(self) -> int:
        """Return K, the number of coefficients of a label."""
        return self.directions.shape[-1]

    def opened(self) -> Supports:
        """Return the flats of one class with that class's own entry open.

        Where a network is sure of the class, the client's rounding of ``p − y`` hides that entry.
        """
        alone = torch.tensor([len(names) == 1 for names in self.classes]).to(self.origin)
        further = self.origin * alone[:, None]
        return replace(self, directions=torch.cat([self.directions, further[..., None]], -1))

    def take(self, rows: Tensor) -> Supports:
        """Return some of the flats."""
        names = tuple(self.classes[i] for i in rows.tolist())
        return Supports(names, self.origin[rows], self.directions[rows])


def supports_of(family: Family, count: int, likely: Sequence[int]) -> Supports | None:
    """Return the flats of a known family of labels of ``count`` classes, or None if it has none.

    Args:
        family: one-hot, smoothed, mixed or smoothed mixed labels.
        count: the number of classes C.
        likely: the classes that may stand out of a label.
    """
    mixed, smoothed = {
        OneHot(): (1, False), Smoothed(): (1, True), Mixed(1): (1, False), Mixed(2): (2, False),
        SmoothedMixed(1): (1, True), SmoothedMixed(2): (2, True),
    }.get(family, (0, False))  # fmt: skip
    if not mixed:
        return None
    corners = torch.eye(count, dtype=torch.double)
    sets = tuple(combinations(sorted(likely), mixed))
    index = torch.tensor(sets, dtype=torch.long).reshape(-1, mixed)
    origin = corners[index[:, -1]]
    directions = [corners[index[:, 0]] - origin] if mixed == 2 else []
    if smoothed:
        directions.append(1 / count - origin)
    none = origin.new_zeros(*origin.shape, 0)
    return Supports(sets, origin, torch.stack(directions, -1) if directions else none)


def joined_supports(one: Supports, other: Supports) -> Supports:
    """Return the flats of both, in this order; missing directions are zero."""
    most = max(one.unknowns, other.unknowns)
    directions = [
        torch.nn.functional.pad(each.directions, (0, most - each.unknowns)) for each in (one, other)
    ]
    return Supports(
        one.classes + other.classes,
        torch.cat([one.origin, other.origin]),
        torch.cat(directions),
    )
