"""The contract of a label family: one method it must have, and five things it may offer.

``project`` is all that is required, and a clean share needs no more. ``Nested``, ``Weighted``,
``Measured``, ``Bounded`` and ``Integrable`` are optional. Whoever needs one of them asks
``simpler_of``, ``nearest_of``, ``misfit_of``, ``distance_of``, ``least_misfit_of`` or
``simplices_of``, which say what happens with a family that does not offer it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeGuard, runtime_checkable

import torch
from torch import Tensor

from softleak.errors import LabelError
from softleak.families.simplices import Simplices


@runtime_checkable
class Family(Protocol):
    """A set of labels, described by the member that is nearest to any given vector."""

    def project(self, y: Tensor) -> Tensor:
        """Return the member nearest to each vector of ``y`` (…, C).

        Entries that the family leaves free are returned unchanged.
        """
        ...


@runtime_checkable
class Nested(Family, Protocol):
    """A family some of whose members come arbitrarily close to those of a simpler family."""

    @property
    def simpler(self) -> Family | None:
        """Return the simpler family, or None. The search looks for labels near it around its
        solutions.
        """
        ...


class Weighted(Family, Protocol):
    """A family whose free parameters are better estimated from entries with a small error."""

    def nearest(self, y: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """Return the member nearest to ``y`` (…, C) in units of ``error``, and its own error."""
        ...


class Measured(Weighted, Protocol):
    """A family that measures how far a label is from it in fewer steps than others need."""

    def misfit(self, y: Tensor, error: Tensor) -> Tensor:
        """Return the distance (…) of ``y`` (…, C) from its nearest member in units of ``error``.

        It is the root mean square over the entries that differ from those of the member, whose own
        error counts as well.
        """
        ...

    def distance(self, y: Tensor) -> Tensor:
        """Return the length (…) of ``y − project(y)``."""
        ...


class Bounded(Measured, Protocol):
    """A family that tells from some entries of a label how far it is from the label at least."""

    def least_misfit(self, y: Tensor, error: Tensor, classes: int) -> Tensor:
        """Return a lower bound (…) of the misfit of labels of C ``classes``.

        Args:
            y: (…, E) any of their entries, the same of all labels.
            error: (…, E) the errors of these.
            classes: how many entries the labels have.
        """
        ...


@runtime_checkable
class Integrable(Family, Protocol):
    """A family whose members are mixes of corners, so that a probability can be integrated."""

    def simplices(self, classes: int, likely: Sequence[int]) -> Simplices:
        """Return the simplices whose union is the family.

        Args:
            classes: the number of classes C.
            likely: the classes that may lead the label. Simplices of other classes may be left
                out; with few classes all of them are likely.
        """
        ...


def simpler_of(family: Family) -> Family | None:
    """Return the simpler family that a family offers, or None."""
    found: Family | None = getattr(family, "simpler", None)
    return found


def nearest_of(family: Family, y: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """Return the member nearest to ``y`` (…, C), and how far ``error`` (…, C) may move it.

    A family that does not weigh entries is projected onto twice: its nearest member moves with the
    entries it is made of.
    """
    if _weighs(family):
        return family.nearest(y, error)
    nearest = family.project(y)
    return nearest, (family.project(y + error) - nearest).abs()


def _weighs(family: Family) -> TypeGuard[Weighted]:
    return hasattr(family, "nearest")  # isinstance with a protocol takes ten times as long


def misfit_of(family: Family, y: Tensor, error: Tensor) -> Tensor | None:
    """Return the distance (…) that a family measures itself, or None if it does not."""
    return family.misfit(y, error) if _measures(family) else None


def distance_of(family: Family, y: Tensor) -> Tensor:
    """Return the length (…) of what a projection onto a family takes from labels (…, C)."""
    if _measures(family):
        return family.distance(y)
    found: Tensor = torch.linalg.vector_norm(y - family.project(y), dim=-1)
    return found


def least_misfit_of(family: Family, y: Tensor, error: Tensor, classes: int) -> Tensor | None:
    """Return a lower bound (…) of the misfit from some entries (…, E), None if there is none."""
    return family.least_misfit(y, error, classes) if _bounds(family) else None


def _bounds(family: Family) -> TypeGuard[Bounded]:
    return hasattr(family, "least_misfit")


def _measures(family: Family) -> TypeGuard[Measured]:
    return hasattr(family, "misfit") and hasattr(family, "distance")


def simplices_of(family: Family, classes: int, likely: Sequence[int]) -> Simplices:
    """Return the simplices by which a label behind noise is integrated.

    Raises:
        LabelError: if the family does not offer them, or offers them for another number of classes.
    """
    if not isinstance(family, Integrable):
        raise LabelError(
            f"the family {family!r} cannot be integrated over, as it has no method `simplices`. "
            "Add simplices(classes, likely) -> softleak.families.Simplices to it "
            "(docs/extending.md), or name a family of softleak, or none"
        )
    found = family.simplices(classes, likely)
    if not isinstance(found, Simplices) or found.classes != classes:
        got = f"{found.classes} classes" if isinstance(found, Simplices) else type(found).__name__
        raise LabelError(
            f"simplices() of the family {family!r} should return softleak.families.Simplices of "
            f"{classes} classes, got {got}"
        )
    return found
