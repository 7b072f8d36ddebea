"""Families of labels (§3.4): one-hot, smoothed, mixed, smoothed mixed, and any label at all.

A family is known by the member that is nearest to a vector.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from softleak.core.errors import LabelError


def top_entries(y: Tensor, k: int) -> Tensor:
    """Return a mask (…, C) of the ``k`` largest entries and of those equal to the least."""
    return y >= kth_largest(y, k)


def kept_on_top(y: Tensor, k: int) -> Tensor:
    """Return entries (…, C) with all but the ``k`` largest set to zero."""
    return torch.where(top_entries(y, k), y.clamp_min(0.0), 0.0)


def below_top(y: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the ``k``-th largest entry, and ones where entries (…, C) are less, else zeros."""
    least = kth_largest(y, k)
    below = least - y
    return least, (below if k == 1 else below.clamp_min_(0.0)).sign_()


def kth_largest(y: Tensor, k: int) -> Tensor:
    """Return the ``k``-th largest entry (…, 1), or the smallest if there are fewer."""
    if k == 1:
        return y.amax(-1, keepdim=True)
    return y.topk(min(k, y.shape[-1]), sorted=True).values[..., -1:]


# A label smoothed by ε has the prior density 2 (1 − ε). That is the density which a smoothed mix
# of two classes, whose weights are uniform, gives to its floor.
SMOOTHING_CONCENTRATION = 2.0


@dataclass(frozen=True, eq=False)
class Simplices:
    """A union of P simplices of labels, with one prior for the weights of their corners."""

    corners: Tensor  # (P, d + 1, C) the labels that each simplex mixes, in float64
    # (d + 1,) the Dirichlet prior's parameters, whole numbers from one on; ones make all
    # members of a simplex equally likely.
    concentration: Tensor
    # Whether the face without the last corner has a probability of its own, as large as that of
    # all other members. Labels that were not smoothed lie on such a face, and a density alone
    # would give them none.
    faced: bool = False

    def __post_init__(self) -> None:
        shape, alpha = tuple(self.corners.shape), self.concentration
        if len(shape) != 3 or 0 in shape or alpha.shape != shape[1:2]:
            raise LabelError(
                "expected corners of shape (simplices, corners, classes), all at least one, and "
                f"one concentration per corner; got {shape} and {tuple(alpha.shape)}"
            )
        if not bool(((alpha >= 1) & (alpha == alpha.round())).all()):
            raise LabelError(f"expected whole concentrations of at least one, got {alpha.tolist()}")

    @property
    def classes(self) -> int:
        return self.corners.shape[2]

    @property
    def origin(self) -> Tensor:
        """Return the first corners (P, C), whose weight is what the other weights leave of one."""
        return self.corners[:, 0]

    @property
    def directions(self) -> Tensor:
        """Return (P, d, C) the vectors from the origin to the other corners."""
        return self.corners[:, 1:] - self.corners[:, :1]

    @classmethod
    def of_mixes(
        cls, k: int, classes: int, likely: Sequence[int], *, smoothed: bool = False
    ) -> Simplices:
        """Return the simplices of mixes of ``k`` likely classes, and the flat label if smoothed."""
        sets = list(combinations(likely, min(k, len(likely))))
        corners = torch.eye(classes, dtype=torch.double)[torch.tensor(sets)]
        faced = smoothed and k < classes
        if faced:
            flat = torch.full((len(sets), 1, classes), 1 / classes, dtype=torch.double)
            corners = torch.cat([corners, flat], 1)
        concentration = torch.ones(corners.shape[1], dtype=torch.double)
        if smoothed and k == 1:
            concentration[0] = SMOOTHING_CONCENTRATION
        return cls(corners, concentration, faced)


@runtime_checkable
class Family(Protocol):
    """A set of labels, described by the member that is nearest to any given vector.

    ``project`` is all it needs. What else is used where it is there: ``simpler``, the family that
    some members come close to; ``nearest(y, error)``, ``misfit(y, error)``, ``distance(y)``,
    ``least_misfit(y, error, classes)`` and ``simplices(classes, likely)``, as classes below do.
    """

    def project(self, y: Tensor) -> Tensor:
        """Return the member nearest to each vector of ``y`` (…, C)."""
        ...


def simplices_of(family: Family, classes: int, likely: Sequence[int]) -> Simplices:
    """Return simplices whose union is the family, or what of it ``likely`` classes lead."""
    if not hasattr(family, "simplices"):
        raise LabelError(
            f"the family {family!r} cannot be integrated over, as it has no method `simplices`. "
            "Add simplices(classes, likely) -> softleak.core.families.Simplices to it "
            "(docs/extending-methods.md), or name a family of softleak, or none"
        )
    found = family.simplices(classes, likely)
    if not isinstance(found, Simplices) or found.classes != classes:
        got = f"{found.classes} classes" if isinstance(found, Simplices) else type(found).__name__
        raise LabelError(
            f"simplices() of the family {family!r} should return softleak.core.families.Simplices "
            f"of {classes} classes, got {got}"
        )
    return found


SMALLEST_ERROR = 1e-300  # An error of zero is replaced by this, so that quotients stay finite.


class _Floored:
    """Labels of ``k`` classes in any proportion, above one floor that all others share."""

    @property
    def k(self) -> int:
        raise NotImplementedError

    def project(self, y: Tensor) -> Tensor:
        """Return ``y`` (…, C), its entries below the top ``k`` set to their mean, at least zero."""
        _, rest = below_top(y, self.k)
        count = rest.sum(-1, keepdim=True).clamp_min_(1.0)  # Ties leave more than k entries free.
        floor = (y * rest).sum(-1, keepdim=True).div_(count).clamp_min_(0.0)
        return y.maximum(floor).mul_(1 - rest).add_(rest.mul_(floor))

    def nearest(self, y: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same with the floor at the mean weighted by ``1/error²``, and its error."""
        free = top_entries(y, self.k)
        best = torch.where(free, torch.inf, error).amin(-1, keepdim=True).clamp_min(SMALLEST_ERROR)
        weight = torch.where(free, 0.0, (best / error.clamp_min(SMALLEST_ERROR)).square())
        total = weight.sum(-1, keepdim=True).clamp_min(SMALLEST_ERROR)
        floor = ((weight * y).sum(-1, keepdim=True) / total).clamp_min(0.0)
        member = torch.where(free, y.maximum(floor), floor)
        return member, torch.where(free, 0.0, best / total.sqrt())

    def misfit(self, y: Tensor, error: Tensor) -> Tensor:
        """Return how far ``y`` is from ``nearest`` in units of both errors, root mean square."""
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


@dataclass(frozen=True)
class Smoothed(_Floored):
    """Labels of one class, smoothed by an unknown amount; one-hot labels are among them."""

    @property
    def k(self) -> int:
        return 1


@dataclass(frozen=True)
class _Counted:
    """Labels with ``k`` free classes."""

    k: int = 2

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or self.k < 1:
            raise LabelError(
                f"expected a whole number of free classes, at least one; got k={self.k}"
            )

    @property
    def simpler(self) -> Family | None:
        return cast(Family, type(self)(self.k - 1)) if self.k > 1 else None


@dataclass(frozen=True)
class SmoothedMixed(_Counted, _Floored):
    """Labels of ``k`` classes in any proportion, above one floor that all others share (timm)."""


@dataclass(frozen=True)
class Mixed(_Counted):
    """Labels of ``k`` classes in any proportion, all others zero, as mixup and CutMix make them."""

    def project(self, y: Tensor) -> Tensor:
        """Return ``y`` (…, C) with all but its top ``k`` entries set to zero."""
        return kept_on_top(y, self.k)

    def simplices(self, classes: int, likely: Sequence[int]) -> Simplices:
        """Return a simplex for every ``k`` of the likely classes."""
        return Simplices.of_mixes(self.k, classes, likely)


@dataclass(frozen=True)
class OneHot:
    """Labels of one class that is certain."""

    def project(self, y: Tensor) -> Tensor:
        """Return ``y`` (…, C), whose entries sum to one, with all but its top entry set to zero."""
        return kept_on_top(y, 1)

    def simplices(self, classes: int, likely: Sequence[int]) -> Simplices:
        """Return a single point for each likely class."""
        return Simplices.of_mixes(1, classes, likely)


@dataclass(frozen=True)
class AnyLabel:
    """The family of all probability distributions over the classes."""

    def project(self, y: Tensor) -> Tensor:
        """Return ``y`` (…, C) with no entry below zero; pseudo labels sum to one (Theorem 1)."""
        return y.clamp_min(0.0)

    def simplices(self, classes: int, likely: Sequence[int]) -> Simplices:
        """Return the one simplex whose corners are all classes, likely or not."""
        return Simplices.of_mixes(classes, classes, range(classes))


ANY_LABEL = AnyLabel()


@dataclass(frozen=True)
class Binary:
    """Labels of several outputs, each of which is zero or one."""

    def project(self, y: Tensor) -> Tensor:
        """Return zero or one for each entry of ``y`` (…, C), whichever is nearer."""
        return (y > 0.5).to(y.dtype)


@dataclass(frozen=True)
class SmoothedBinary:
    """Labels of several outputs, each ``e`` or ``1 − e`` with one smoothing ``e`` for all."""

    @property
    def simpler(self) -> Family | None:
        return Binary()

    def project(self, y: Tensor) -> Tensor:
        """Return the entries of ``y`` (…, C) smoothed by their mean distance from zero or one."""
        high = y > 0.5
        e = torch.where(high, 1 - y, y).mean(-1, keepdim=True).clamp(0.0, MOST_SMOOTHED)
        return torch.where(high, 1 - e, e)


MOST_SMOOTHED = 0.4  # of a binary label: more would leave nothing of it

# The first of these that fits a label names it, so simpler families come first.
KNOWN_FAMILIES: tuple[Family, ...] = (OneHot(), Smoothed(), Mixed(2), SmoothedMixed(2))
