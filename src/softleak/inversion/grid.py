"""This module finds the scale of a layer's input from the grid of floating-point numbers.

``∂L/∂W = δ xᵀ`` is rounded once, entry by entry. Many rows therefore tell ``x`` to a small part of
the spacing of that grid, all but its scale. Only at the true scale do all entries lie on the grid
at once (docs/method.md, "The last bits").
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class GridSettings:
    """These are the settings of the search for a scale. The spacing is that of the grid.

    Attributes:
        fewest_entries: With fewer entries than this, all could lie on the grid by chance.
        most_entries: With more entries than this, the search takes longer and is hardly surer.
        entry_error: The largest error of an entry, as a part of the spacing, with which the entry
            still counts.
        trials_per_spacing: How many scales are tried while the largest entries move by one
            spacing.
        window: How many standard errors of the scale are searched on either side.
        most_trials: If more scales had to be tried, the scale is too uncertain for the grid to
            tell it.
        least_score: The best scale must have at least this score, the mean of
            ``cos 2π(x/spacing)``. It is one where all entries lie on the grid, zero by chance.
        lead: By how many standard errors the best score must exceed that of any other scale.
        finest_spacing: The finest relative spacing that computations in float64 resolve.
    """

    fewest_entries: int = 32
    most_entries: int = 512
    entry_error: float = 1 / 8
    trials_per_spacing: int = 6
    window: float = 6.0
    most_trials: int = 1 << 14
    least_score: float = 0.6
    lead: float = 6.0
    finest_spacing: float = 1e-12


GRID_SETTINGS = GridSettings()


@dataclass(frozen=True)
class Scale:
    """This is the factor by which to multiply a vector, and the relative error that remains."""

    factor: float
    error: float


def scale_on_grid(
    x: Tensor,
    error: Tensor,
    scale_error: float,
    dtype: torch.dtype,
    settings: GridSettings = GRID_SETTINGS,
) -> Scale | None:
    """Return the factor near one that puts all of ``x`` on the grid of a floating-point type.

    Args:
        x: Numbers (n,) that lie on the grid but for one common factor and their errors.
        error: The standard error (n,) that each entry has by itself.
        scale_error: The standard error of the common factor.
        dtype: The type whose grid it is.
        settings: The settings of the search.

    Returns:
        The factor and its error, or None if no factor stands out.
    """
    spacing = torch.finfo(dtype).eps / 2  # relative, for the largest numbers of an octave
    per, most = settings.trials_per_spacing, settings.most_trials
    certain = scale_error < 1
    steps = math.ceil(per * settings.window * scale_error / spacing) + 2 * per if certain else most
    if spacing < settings.finest_spacing or 2 * steps > most:
        return None
    clear = (error <= settings.entry_error * spacing * x.abs()) & (x != 0)
    points = _grid_units(x[clear], spacing, settings.most_entries)
    if len(points) < settings.fewest_entries:
        return None
    tried = torch.arange(-steps, steps + 1, dtype=x.dtype, device=x.device) * spacing / per
    scores = torch.cos(2 * math.pi * (points + points * tried[:, None]))
    best = int(scores.mean(1).argmax())
    near = float(scores[best].mean()) >= settings.least_score
    if not (near and _stands_out(scores, best, settings)):
        return None
    moved = points * (1 + tried[best])
    off = moved.round() - moved
    more = (moved @ off) / moved.square().sum()
    left = (off - more * moved).norm() / moved.norm() / len(moved) ** 0.5
    return Scale(float((1 + tried[best]) * (1 + more)), float(left))


def _grid_units(x: Tensor, spacing: float, most: int) -> Tensor:
    """Return up to about ``most`` different entries, each in units of the spacing around it."""
    octave = torch.frexp(x).exponent - 1
    points = (x / torch.ldexp(torch.full_like(x, 2 * spacing), octave)).sort().values
    points = points[points.diff(prepend=points[:1] - 1) > 0.5]
    return points[:: len(points) // most + 1]


def _stands_out(scores: Tensor, best: int, settings: GridSettings) -> bool:
    """Tell whether one scale leads all others outside of its own peak.

    ``scores`` (trials, entries) is the cosine of every entry at every scale; the lead is measured
    in standard errors of the mean over entries.
    """
    rank = torch.arange(len(scores), device=scores.device)
    ahead = (scores[best] - scores)[(rank - best).abs() > settings.trials_per_spacing / 2]
    errors = ahead.std(1) / scores.shape[1] ** 0.5
    return bool((ahead.mean(1) > settings.lead * errors).all())
