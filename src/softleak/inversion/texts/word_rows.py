"""This module says which rows of a table's gradient are not empty, and how large their errors are.

A text touches few rows of a table. If nearly all rows are filled, the share carries noise, and
the rows themselves show how much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.share import GradientShare


@dataclass(frozen=True)
class RowSettings:
    """These settings tell rows of words from rows of noise.

    Attributes:
        crowded: the part of a table's rows from which on they cannot all be words.
        fewest: a table of fewer rows may be filled by one text.
        sigmas: by how many standard deviations a row's length has to exceed that of noise.
        growth: the rounding of a row's entry, in units of the rounding of its number format.
    """

    crowded: float = 0.98
    fewest: int = 256
    sigmas: float = 8.0
    growth: float = 4.0


ROWS = RowSettings()


@dataclass(frozen=True, eq=False)
class FilledRows:
    """These are the rows of a gradient that are not empty.

    Attributes:
        index: (T,) their numbers.
        value: (T, d) the rows, in float64.
        noise: the standard deviation of noise on each entry; zero if there is none.
        rounding: the relative error of an entry, from its number format.
        crowded: whether nearly all rows of the table are filled. In a small table that may be
            one text or noise, and only an equation that holds can tell which.
    """

    index: Tensor
    value: Tensor
    noise: float
    rounding: float
    crowded: bool = False

    def errors(self) -> Tensor:
        """Return the rounding (T,) of an entry of each row, beside its noise."""
        size: Tensor = self.value.norm(dim=1) / math.sqrt(self.value.shape[1])
        return self.rounding * size


def filled_rows(
    share: GradientShare, name: str, computed_in: torch.dtype, noise: float = 0.0
) -> FilledRows:
    """Return the rows of a gradient, as (T, d), that hold more than noise.

    Args:
        share: what the client sent.
        name: the parameter.
        computed_in: the number format of the model.
        noise: what is known of the noise from elsewhere, beside what the share says itself.
    """
    held = share[name].double()
    rows = held.reshape(-1, held.shape[-1])
    lengths = rows.norm(dim=1)
    noise = share.noise(name) or noise or _own_noise(lengths, rows.shape[1])
    width = rows.shape[1]
    line = noise * (math.sqrt(width) + ROWS.sigmas)
    index = (lengths > line).nonzero()[:, 0]
    rounding = ROWS.growth * share.resolution(name, computed_in)
    return FilledRows(index, rows[index], noise, rounding, _crowded(lengths))


def _crowded(lengths: Tensor) -> bool:
    return float((lengths > 0).double().mean()) > ROWS.crowded


def _own_noise(lengths: Tensor, width: int) -> float:
    """Return the noise that crowded rows show by their median length; zero if few are filled."""
    if len(lengths) < ROWS.fewest or not _crowded(lengths):
        return 0.0
    return float(lengths.median()) / math.sqrt(width)
