"""This module looks for another value of a single entry that would have sent the same.

If every entry of an input enters the network through a function that takes some values twice, as
``x exp(−x)`` does, both values send the same. The function may be anything, so that no list has the
other value. All other entries are known, however, and one number can be searched for on a line.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.matching.gauss_newton.share_equations import ShareEquations

GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class EntrySearch:
    """This searches for other values of some entries of an input, one entry at a time.

    Attributes:
        entries: how many entries are tried, from the smallest to the largest.
        points: how many values of an entry are tried near those of the input, and as many far away.
        beyond: how far values reach beyond those of the input, at least by its range. Inputs are
            mostly normalised, so that this holds a period of every function that tells them apart.
        narrowings: how often the interval around a smallest misfit is narrowed.
    """

    entries: int = 7
    points: int = 96
    beyond: float = 32.0
    narrowings: int = 80

    def __call__(self, equations: ShareEquations, z: Tensor, error: Tensor, margin: float) -> bool:
        """Return whether another value of an entry explains the share.

        Args:
            equations: the equations that the inputs fulfil.
            z: the unknowns (n,).
            error: the standard error of each entry of the inputs.
            margin: other inputs whose misfit is below this, in standard errors, send the same.
        """
        flat = z[: equations.function.pixels]
        order = flat.argsort().tolist()
        places = torch.linspace(0, len(order) - 1, self.entries).round().long().tolist()
        low, high = float(flat.min()), float(flat.max())
        span = high - low
        near = torch.linspace(low - span, high + span, self.points).tolist()
        reach = max(self.beyond, span)
        values = sorted(near + torch.linspace(low - reach, high + reach, self.points).tolist())
        return any(
            self._other(equations, z, at, values, 10 * float(error.flatten()[at]), margin)
            for at in dict.fromkeys(order[place] for place in places)
        )

    def _other(
        self, equations: ShareEquations, z: Tensor, at: int, values: list[float], near: float,
        margin: float,
    ) -> bool:  # fmt: skip
        """Return whether a value that is not near the entry's own one leaves no misfit."""

        def misfit(value: float) -> float:
            changed = z.clone()
            changed[at] = value
            size = float(equations.residual(changed).square().mean().sqrt())
            return size if math.isfinite(size) else math.inf

        own, sizes = float(z[at]), [misfit(value) for value in values]
        for k in range(1, len(values) - 1):
            lowest = sizes[k] <= min(sizes[k - 1], sizes[k + 1])
            if lowest and not values[k - 1] <= own <= values[k + 1]:
                value = self._narrowed(misfit, values[k - 1], values[k + 1])
                if misfit(value) < margin and abs(value - own) > near:
                    return True
        return False

    def _narrowed(self, misfit: Callable[[float], float], low: float, high: float) -> float:
        """Return where a function of one number is least within an interval, by golden sections."""
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        one, other = misfit(left), misfit(right)
        for _ in range(self.narrowings):
            if one < other:
                high, right, other = right, left, one
                left = high - GOLDEN * (high - low)
                one = misfit(left)
            else:
                low, left, one = left, right, other
                right = low + GOLDEN * (high - low)
                other = misfit(right)
        return (low + high) / 2
