"""This module finds the levels on which the pixels of an image lie, if they lie on any.

An image of 8 bits that was normalised has at most 256 values in each channel, evenly spaced. If
its pixels are known to a small part of that spacing, this is seen, and the values are exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LevelSettings:
    """These settings say when pixels are believed to lie on levels.

    Attributes:
        fewest: fewer values than this in a channel could be evenly spaced by chance.
        most: the number of levels that a channel has at most.
        sigmas: how many standard errors a pixel may be off.
    """

    fewest: int = 16
    most: int = 256
    sigmas: float = 8.0


LEVEL_SETTINGS = LevelSettings()


@dataclass(frozen=True)
class Levels:
    """These are the evenly spaced values ``first + k · step`` of a channel.

    Attributes:
        first: the lowest value that was seen.
        step: the distance of neighbours.
    """

    first: float
    step: float


def levels_of(values: Tensor, error: float) -> Levels | None:
    """Return the levels on which all values (n,) lie, or None if they lie on none.

    Args:
        values: the pixels of a channel.
        error: the largest of their standard errors.
    """
    slack = LEVEL_SETTINGS.sigmas * error
    ordered = values.double().sort().values
    apart = ordered.diff() > 2 * slack  # pixels of one level are nearer, of two levels farther
    group = torch.cat([apart.new_zeros(1), apart]).cumsum(0)
    count = group.bincount().double()
    if not LEVEL_SETTINGS.fewest <= len(count) <= LEVEL_SETTINGS.most:
        return None
    means = count.new_zeros(len(count)).index_add(0, group, ordered) / count
    gaps = means.diff()
    near = gaps[gaps < 1.3 * gaps.min()].mean()
    fits = (_fit(ordered, group, (gaps / near * parts).round()) for parts in (1, 2, 3))
    return next((levels for levels, off in fits if off <= slack < levels.step / 4), None)


def _fit(values: Tensor, group: Tensor, gaps: Tensor) -> tuple[Levels, float]:
    """Return the levels nearest to values whose groups are so many steps apart, and how near."""
    number = torch.cat([gaps.new_zeros(1), gaps.cumsum(0)])
    if int(number[-1]) >= LEVEL_SETTINGS.most:
        return Levels(0.0, 0.0), math.inf
    x = number[group] - number[group].mean()
    step = (x * values).sum() / x.square().sum()
    first = values.mean() - step * number[group].mean()
    off = (values - (first + step * number[group])).abs().max()
    return Levels(float(first), float(step)), float(off)
