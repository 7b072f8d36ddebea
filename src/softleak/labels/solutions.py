"""This module holds what a search found along a curve, before it is certified."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from softleak.families import Family
from softleak.labels.curve import Curve
from softleak.labels.minima import Minima
from softleak.labels.scale import Rescaled
from softleak.results import Candidate


@dataclass(frozen=True, eq=False)
class Solutions:
    """This holds what a search found along a curve. ``tau`` (N,) is set where the curve is a
    segment.
    """

    curve: Curve
    family: Family
    minima: Minima
    unknowns: int  # that the family's equations have to determine
    tau: Tensor | None = None
    relative: float = 0.0  # the rounding of what the client computed
    declared: bool = True  # somebody said that labels are of this family
    normalised: bool = False  # the model takes a log-softmax; see ``Head``

    @property
    def scaled(self) -> bool:
        """Return whether the share may be the gradient times any factor."""
        return self.tau is not None or isinstance(self.curve, Rescaled)


@dataclass(frozen=True, eq=False)
class SolutionAt:
    """This holds a candidate and the scalar of its feature.

    ``path`` (S,) are the scalars of the labels along it, ``equations`` how many its family imposes.
    """

    candidate: Candidate
    tau: float
    path: Tensor
    equations: float
    spare: float  # bits that the equations test beyond what the unknowns absorb
    moves: bool  # whether the feature's scalar is the one searched for
