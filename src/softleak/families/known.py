"""The families that softleak knows: one-hot, smoothed, mixed, and any label (§3.4).

The paper's exclusion set is the top ``k`` entries, which these families leave free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.errors import LabelError
from softleak.families.contract import Family
from softleak.families.simplices import Simplices

SMALLEST_ERROR = 1e-300  # An error of zero is replaced by this, so that quotients stay finite.


@dataclass(frozen=True)
class Mixed:
    """Labels of ``k`` classes in any proportion, all others zero, as mixup and CutMix make them."""

    k: int = 2

    def __post_init__(self) -> None:
        _check_free(self.k)

    @property
    def simpler(self) -> Family | None:
        """The family that labels with a vanishing last weight come close to."""
        return Mixed(self.k - 1) if self.k > 1 else None

    def project(self, y: Tensor) -> Tensor:
        """Return ``y`` (…, C) with all but its top ``k`` entries set to zero."""
        return torch.where(_top(y, self.k), y.clamp_min(0.0), 0.0)

    def simplices(self, classes: int, likely: Sequence[int]) -> Simplices:
        """Return a simplex for every ``k`` of the likely classes."""
        return Simplices.of_mixes(self.k, classes, likely)


@dataclass(frozen=True)
class SmoothedMixed:
    """Labels of ``k`` classes in any proportion, above one floor that all others share (timm)."""

    k: int = 2

    def __post_init__(self) -> None:
        _check_free(self.k)

    @property
    def simpler(self) -> Family | None:
        """The family that labels with a vanishing last weight come close to."""
        return SmoothedMixed(self.k - 1) if self.k > 1 else None

    def project(self, y: Tensor) -> Tensor:
        """Return ``y`` (…, C) with all but its top ``k`` entries set to their mean.

        The mean is at least zero.
        """
        free = _top(y, self.k)
        rest = (~free).sum(-1, keepdim=True).clamp_min(1)  # Ties leave more than k entries free.
        floor = torch.where(free, 0.0, y).sum(-1, keepdim=True) / rest
        floor = floor.clamp_min(0.0)
        return torch.where(free, y.maximum(floor), floor)

    def nearest(self, y: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same with the floor at the weighted mean, and the error of that mean.

        Entries weigh ``1/error²``, so that exact entries determine the floor.
        """
        free = _top(y, self.k)
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
        least, rest = _rest(y, self.k)
        off = error / rest  # infinite where an entry is free
        best = off.amin(-1, keepdim=True).clamp(SMALLEST_ERROR, 1 / SMALLEST_ERROR)
        weight = torch.div(best, off, out=rest).square_()  # memory that is at hand is used again
        total = weight.sum(-1, keepdim=True).clamp_min(SMALLEST_ERROR)
        floor = (weight.mul_(y).sum(-1, keepdim=True) / total).clamp_min(0.0)
        apart = torch.sub(y, floor, out=weight).div_(off.add_(best / total.sqrt()))
        if bool((least < floor).any()):  # the second of two free entries may be negative
            apart += torch.where(y >= least, (y - floor).clamp_max_(0.0) / error, 0.0)
        size: Tensor = torch.linalg.vector_norm(apart, dim=-1)
        root: Tensor = torch.linalg.vector_norm(apart.sign_(), dim=-1)  # of how many are apart
        return size / root.clamp_min_(1.0)

    def distance(self, y: Tensor) -> Tensor:
        """Return how far ``y`` (…, C) is from ``project``, as the length (…) of the difference."""
        least, rest = _rest(y, self.k)
        count = rest.sum(-1, keepdim=True).clamp_min_(1.0)
        floor = ((y * rest).sum(-1, keepdim=True) / count).clamp_min_(0.0)
        apart = (y - floor).mul_(rest)
        if bool((least < floor).any()):
            apart += (y - floor).clamp_max_(0.0).mul_(1 - rest)
        length: Tensor = torch.linalg.vector_norm(apart, dim=-1)
        return length

    def simplices(self, classes: int, likely: Sequence[int]) -> Simplices:
        """Return a simplex for every ``k`` likely classes and the flat label."""
        return Simplices.of_mixes(self.k, classes, likely, smoothed=True)


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
class Smoothed:
    """Labels of one class, smoothed by an unknown amount; one-hot labels are among them."""

    def project(self, y: Tensor) -> Tensor:
        """Return ``y`` (…, C) with all but its top entry set to their mean."""
        return SmoothedMixed(1).project(y)

    def nearest(self, y: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same with the floor at the weighted mean, and the error of that mean."""
        return SmoothedMixed(1).nearest(y, error)

    def misfit(self, y: Tensor, error: Tensor) -> Tensor:
        """Return how far ``y`` is from ``nearest`` in units of both errors, root mean square."""
        return SmoothedMixed(1).misfit(y, error)

    def distance(self, y: Tensor) -> Tensor:
        """Return how far ``y`` (…, C) is from ``project``, as the length (…) of the difference."""
        return SmoothedMixed(1).distance(y)

    def simplices(self, classes: int, likely: Sequence[int]) -> Simplices:
        """Return the segment from each likely class to the flat label."""
        return Simplices.of_mixes(1, classes, likely, smoothed=True)


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


def _check_free(k: int) -> None:
    """Raise ``LabelError`` unless ``k`` is a whole number of classes."""
    if not isinstance(k, int) or k < 1:
        raise LabelError(f"expected a whole number of free classes, at least one; got k={k}")


def _top(y: Tensor, k: int) -> Tensor:
    """Return a mask (…, C) of the ``k`` largest entries and of those equal to the least."""
    return y >= _least(y, k)


def _rest(y: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the ``k``-th largest entry (…, 1), and one where an entry (…, C) is less, else zero.

    Numbers instead of a mask: products with them take half the time of a choice.
    """
    least = _least(y, k)
    below = least - y
    return least, (below if k == 1 else below.clamp_min_(0.0)).sign_()


def _least(y: Tensor, k: int) -> Tensor:
    """Return the ``k``-th largest entry (…, 1), or the smallest if there are fewer."""
    if k == 1:
        return y.amax(-1, keepdim=True)
    return y.topk(min(k, y.shape[-1]), sorted=True).values[..., -1:]


# The first of these that fits a label names it, so simpler families come first.
KNOWN_FAMILIES: tuple[Family, ...] = (OneHot(), Smoothed(), Mixed(2), SmoothedMixed(2))
