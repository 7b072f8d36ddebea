"""Smoothed labels (§3.4): all classes but a few share one floor, whose height is unknown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.families.contract import Family
from softleak.families.free_entries import below_top, check_free, top_entries
from softleak.families.simplices import Simplices

SMALLEST_ERROR = 1e-300  # An error of zero is replaced by this, so that quotients stay finite.


@dataclass(frozen=True)
class SmoothedMixed:
    """Labels of ``k`` classes in any proportion, above one floor that all others share (timm)."""

    k: int = 2

    def __post_init__(self) -> None:
        check_free(self.k)

    @property
    def simpler(self) -> Family | None:
        """The family that labels with a vanishing last weight come close to."""
        return SmoothedMixed(self.k - 1) if self.k > 1 else None

    def project(self, y: Tensor) -> Tensor:
        """Return ``y`` (…, C) with all but its top ``k`` entries set to their mean.

        The mean is at least zero.
        """
        _, rest = below_top(y, self.k)
        count = rest.sum(-1, keepdim=True).clamp_min_(1.0)  # Ties leave more than k entries free.
        floor = (y * rest).sum(-1, keepdim=True).div_(count).clamp_min_(0.0)
        return y.maximum(floor).mul_(1 - rest).add_(rest.mul_(floor))

    def nearest(self, y: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same with the floor at the weighted mean, and the error of that mean.

        Entries weigh ``1/error²``, so that exact entries determine the floor.
        """
        free = top_entries(y, self.k)
        best = torch.where(free, torch.inf, error).amin(-1, keepdim=True).clamp_min(SMALLEST_ERROR)
        weight = torch.where(free, 0.0, (best / error.clamp_min(SMALLEST_ERROR)).square())
        total = weight.sum(-1, keepdim=True).clamp_min(SMALLEST_ERROR)
        floor = ((weight * y).sum(-1, keepdim=True) / total).clamp_min(0.0)
        member = torch.where(free, y.maximum(floor), floor)
        return member, torch.where(free, 0.0, best / total.sqrt())

    def misfit(self, y: Tensor, error: Tensor) -> Tensor:
        """Return how far ``y`` is from ``nearest`` in units of both errors, root mean square.

        The errors have to be above zero.
        """
        apart = self._apart(y, error)
        size: Tensor = torch.linalg.vector_norm(apart, dim=-1)
        root: Tensor = torch.linalg.vector_norm(apart.sign_(), dim=-1)  # of how many are apart
        return size.div_(root.clamp_min_(1.0))

    def least_misfit(self, y: Tensor, error: Tensor, classes: int) -> Tensor:
        """Return what the misfit of labels of C ``classes`` is at least, from some entries (…, E).

        No floor fits these entries better than their own. The floor of all entries is known more
        closely than any entry, so both errors together are at most twice that of the entry. And no
        more than C entries are apart.
        """
        size: Tensor = torch.linalg.vector_norm(self._apart(y, error), dim=-1)
        return size.div_(2 * math.sqrt(classes))

    def _apart(self, y: Tensor, error: Tensor) -> Tensor:
        """Return the entries (…, C) of ``y`` less those of ``nearest``, in units of both errors."""
        least, rest = below_top(y, self.k)
        off = error / rest  # infinite where an entry is free
        best = off.amin(-1, keepdim=True).clamp_(SMALLEST_ERROR, 1 / SMALLEST_ERROR)
        weight = torch.div(best, off, out=rest).square_()  # memory that is at hand is used again
        total = weight.sum(-1, keepdim=True).clamp_min_(SMALLEST_ERROR)
        floor = weight.mul_(y).sum(-1, keepdim=True).div_(total).clamp_min_(0.0)
        apart = torch.sub(y, floor, out=weight).div_(off.add_(best.div_(total.sqrt_())))
        if bool((least < floor).any()):  # the second of two free entries may be negative
            apart += torch.where(y >= least, (y - floor).clamp_max_(0.0) / error, 0.0)
        return apart

    def distance(self, y: Tensor) -> Tensor:
        """Return how far ``y`` (…, C) is from ``project``, as the length (…) of the difference."""
        least, rest = below_top(y, self.k)
        apart = y * rest
        count = rest.sum(-1, keepdim=True).clamp_min_(1.0)
        floor = apart.sum(-1, keepdim=True).div_(count).clamp_min_(0.0)
        apart.addcmul_(rest, floor, value=-1)
        if bool((least < floor).any()):
            apart += (y - floor).clamp_max_(0.0).mul_(1 - rest)
        length: Tensor = torch.linalg.vector_norm(apart, dim=-1)
        return length

    def simplices(self, classes: int, likely: Sequence[int]) -> Simplices:
        """Return a simplex for every ``k`` likely classes and the flat label."""
        return Simplices.of_mixes(self.k, classes, likely, smoothed=True)


ONE_CLASS = SmoothedMixed(1)


@dataclass(frozen=True)
class Smoothed:
    """Labels of one class, smoothed by an unknown amount; one-hot labels are among them."""

    def project(self, y: Tensor) -> Tensor:
        """Return ``y`` (…, C) with all but its top entry set to their mean."""
        return ONE_CLASS.project(y)

    def nearest(self, y: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same with the floor at the weighted mean, and the error of that mean."""
        return ONE_CLASS.nearest(y, error)

    def misfit(self, y: Tensor, error: Tensor) -> Tensor:
        """Return how far ``y`` is from ``nearest`` in units of both errors, root mean square."""
        return ONE_CLASS.misfit(y, error)

    def least_misfit(self, y: Tensor, error: Tensor, classes: int) -> Tensor:
        """Return what the misfit of labels of C ``classes`` is at least, from some entries."""
        return ONE_CLASS.least_misfit(y, error, classes)

    def distance(self, y: Tensor) -> Tensor:
        """Return how far ``y`` (…, C) is from ``project``, as the length (…) of the difference."""
        return ONE_CLASS.distance(y)

    def simplices(self, classes: int, likely: Sequence[int]) -> Simplices:
        """Return the segment from each likely class to the flat label."""
        return Simplices.of_mixes(1, classes, likely, smoothed=True)
