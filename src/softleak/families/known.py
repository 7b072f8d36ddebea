"""The families that softleak knows: one-hot, smoothed, mixed, and any label (§3.4).

The paper's exclusion set is the top ``k`` entries, which these families leave free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.families.contract import Family
from softleak.families.free_entries import check_free, top_entries
from softleak.families.simplices import Simplices
from softleak.families.smoothed import Smoothed, SmoothedMixed


@dataclass(frozen=True)
class Mixed:
    """Labels of ``k`` classes in any proportion, all others zero, as mixup and CutMix make them."""

    k: int = 2

    def __post_init__(self) -> None:
        check_free(self.k)

    @property
    def simpler(self) -> Family | None:
        """The family that labels with a vanishing last weight come close to."""
        return Mixed(self.k - 1) if self.k > 1 else None

    def project(self, y: Tensor) -> Tensor:
        """Return ``y`` (…, C) with all but its top ``k`` entries set to zero."""
        return torch.where(top_entries(y, self.k), y.clamp_min(0.0), 0.0)

    def simplices(self, classes: int, likely: Sequence[int]) -> Simplices:
        """Return a simplex for every ``k`` of the likely classes."""
        return Simplices.of_mixes(self.k, classes, likely)


@dataclass(frozen=True)
class OneHot:
    """Labels of one class that is certain."""

    def project(self, y: Tensor) -> Tensor:
        """Return ``y`` (…, C) with all but its top entry set to zero.

        The entries of a pseudo label sum to one, so the top entry of a member is then one.
        """
        return Mixed(1).project(y)

    def simplices(self, classes: int, likely: Sequence[int]) -> Simplices:
        """Return a single point for each likely class."""
        return Simplices.of_mixes(1, classes, likely)


@dataclass(frozen=True)
class AnyLabel:
    """This is the family of all probability distributions over the classes."""

    def project(self, y: Tensor) -> Tensor:
        """Return ``y`` (…, C) with no entry below zero.

        The sum of a pseudo label is one for every scalar (Theorem 1), so it needs no projection.
        """
        return y.clamp_min(0.0)

    def simplices(self, classes: int, likely: Sequence[int]) -> Simplices:
        """Return the one simplex whose corners are all classes, likely or not."""
        return Simplices.of_mixes(classes, classes, range(classes))


# The first of these that fits a label names it, so simpler families come first.
KNOWN_FAMILIES: tuple[Family, ...] = (OneHot(), Smoothed(), Mixed(2), SmoothedMixed(2))
