"""A family as a union of simplices: the sets that a likelihood is integrated over.

Every label of such a family is a mix of a few corners. For each class, ``Smoothed`` has two of
them: that class, and the flat label. The weights of the mix have a Dirichlet prior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from softleak.errors import LabelError

# A label smoothed by ε has the prior density 2 (1 − ε). That is the density which a smoothed mix
# of two classes, whose weights are uniform, gives to its floor.
SMOOTHING_CONCENTRATION = 2.0


@dataclass(frozen=True, eq=False)
class Simplices:
    """This is a union of P simplices of labels, with one prior for the weights of their corners.

    Attributes:
        corners: (P, d + 1, C) the labels that each simplex mixes, in float64.
        concentration: (d + 1,) the Dirichlet prior's parameters, whole numbers from one on; ones
            make all members of a simplex equally likely.
        faced: whether the face without the last corner has a probability of its own, as large as
            that of all other members. Labels that nobody smoothed lie on such a face, and a
            density alone would give them none.
    """

    corners: Tensor
    concentration: Tensor
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
        """Return the number of classes C."""
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
        """Return the simplices of all mixes of ``k`` of the likely classes.

        With ``smoothed`` each simplex has the flat label as its last corner. It is left out if
        ``k`` covers all classes, since the flat label then is one of the mixes.
        """
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
