"""The grid of floating-point numbers, which a layer's input lies on: it fixes the input's scale.

``∂L/∂W = δ xᵀ`` is rounded once, entry by entry, so many rows tell ``x`` to a small part of that
grid's spacing, but for its scale. At the true scale all entries lie on the grid at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

FEWEST = 32  # entries: fewer could lie on the grid by chance
ENTRIES = 512  # more would add time, and hardly certainty
CLEAR = 1 / 8  # of the spacing: what the error of an entry may be
STEPS = 6  # scales tried while an entry moves from one point of the grid to the next
WINDOW = 6.0  # standard errors of the scale that are searched
MOST = 1 << 14  # scales: where it is hardly known the grid says nothing
NEAR = 0.6  # mean cosine of the distances; one where all lie on the grid, zero by chance
APART = 6.0  # standard errors by which the best scale is ahead of every other
RESOLVED = 1e-12  # a relative spacing that float64 can see


@dataclass(frozen=True)
class Scale:
    """What to multiply a vector by, and the relative error that leaves."""

    factor: float
    error: float


def scale_on_grid(x: Tensor, error: Tensor, unsure: float, dtype: torch.dtype) -> Scale | None:
    """The factor, one but for ``unsure``, that puts all of ``x`` (n,) on the grid of ``dtype``.

    ``error`` is that of each entry by itself. None where no factor stands out.
    """
    spacing = torch.finfo(dtype).eps / 2  # relative, of the largest numbers of an octave
    steps = math.ceil(STEPS * WINDOW * unsure / spacing) + 2 * STEPS if unsure < 1 else MOST
    if spacing < RESOLVED or 2 * steps > MOST:
        return None
    points = _points(x[(error <= CLEAR * spacing * x.abs()) & (x != 0)], spacing)
    if len(points) < FEWEST:
        return None
    tried = torch.arange(-steps, steps + 1, dtype=x.dtype, device=x.device) * spacing / STEPS
    near = torch.cos(2 * math.pi * (points + points * tried[:, None]))
    best = int(near.mean(1).argmax())
    if not (float(near[best].mean()) >= NEAR and _alone(near, best)):
        return None
    moved = points * (1 + tried[best])
    off = moved.round() - moved
    more = (moved @ off) / moved.square().sum()
    left = (off - more * moved).norm() / moved.norm() / len(moved) ** 0.5
    return Scale(float((1 + tried[best]) * (1 + more)), float(left))


def _points(x: Tensor, spacing: float) -> Tensor:
    """Some entries, in units of the grid where they are; the same number only once."""
    octave = torch.frexp(x).exponent - 1
    points = (x / torch.ldexp(torch.full_like(x, 2 * spacing), octave)).sort().values
    points = points[points.diff(prepend=points[:1] - 1) > 0.5]
    return points[:: len(points) // ENTRIES + 1]


def _alone(near: Tensor, best: int) -> bool:
    """Whether one scale is ahead of all that are no part of its own peak, entry by entry."""
    rank = torch.arange(len(near), device=near.device)
    ahead = (near[best] - near)[(rank - best).abs() > STEPS / 2]
    errors = ahead.std(1) / near.shape[1] ** 0.5
    return bool((ahead.mean(1) > APART * errors).all())
