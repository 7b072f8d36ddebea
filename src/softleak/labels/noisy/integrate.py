"""This module holds a quadrature for a density with narrow peaks, on a closed interval of both
signs.

A peak is refined if the first grid has a local maximum beside it. The tails of Gaussian peaks see
to that, unless a far wider peak of the same sign covers them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

LogDensity = Callable[[Tensor], Tensor]  # maps scalars (S,) to log densities (S,)


@dataclass(frozen=True)
class QuadratureSettings:
    """How finely a density is looked at.

    Attributes:
        coarse: points of the first grid for each sign, evenly spaced in the logarithm.
        peaks: the number of highest local maxima for each sign that are refined.
        zooms: levels of zoom onto each of them.
        section: points that a bracket is cut into at every level.
        negligible: a peak whose logarithm is this much lower than the highest has no weight.
        shells: points on each side of a peak, evenly spaced in the logarithm of their distance,
            from which its width is estimated.
        nearest: the distance of the first of them from the peak, relative to the peak's scalar.
        farthest: the distance of the last of them.
        fine: points across each peak.
        reach: standard deviations that they span on each side.
    """

    coarse: int = 160
    peaks: int = 6
    zooms: int = 13
    section: int = 9
    negligible: float = 40.0
    shells: int = 48
    nearest: float = 1e-10
    farthest: float = 0.5
    fine: int = 61
    reach: float = 7.0


QUADRATURE = QuadratureSettings()


def quadrature(log: LogDensity, smallest: float, largest: float) -> tuple[Tensor, Tensor]:
    """Return nodes and weights by which a density is integrated over ``smallest ≤ |t| ≤ largest``.

    Args:
        log: the logarithm of the density; it need not be normalised.
        smallest: the lower end of |t|, positive.
        largest: the upper end of |t|.

    Returns:
        Scalars (S,) of both signs, close together where the density is, and the width (S,) that
        each stands for (the trapezoidal rule).
    """
    steps = torch.linspace(0, 1, QUADRATURE.coarse, dtype=torch.double)
    size = smallest * (largest / smallest) ** steps
    every = []
    for sign in (1.0, -1.0):
        t = sign * size
        peaks = _zoomed(log, *_brackets(log(t), t))
        every.append((sign, size, peaks))
    height = torch.cat([log(peaks) for _, _, peaks in every])
    best = float(height.max())
    scalars, widths = [], []
    for sign, grid, peaks in every:
        kept = peaks[log(peaks) > best - QUADRATURE.negligible]
        near = [_across(log, float(peak), smallest, largest) for peak in kept]
        ordered = torch.cat([grid, *near]).sort().values
        scalars.append(sign * ordered)
        gaps = F.pad(ordered.diff(), (1, 1))
        widths.append((gaps[1:] + gaps[:-1]) / 2)
    return torch.cat(scalars), torch.cat(widths)


def _brackets(height: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Return both ends (M,) of the grid cells around the highest local maxima."""
    padded = F.pad(height, (1, 1), value=-torch.inf)
    peak = ((height >= padded[:-2]) & (height >= padded[2:])).nonzero()[:, 0]
    peak = peak[height[peak].argsort(descending=True)[: QUADRATURE.peaks]]
    return t[(peak - 1).clamp_min(0)], t[(peak + 1).clamp_max(len(t) - 1)]


def _zoomed(log: LogDensity, left: Tensor, right: Tensor) -> Tensor:
    """Return the highest point (M,) of each bracket, by repeated zooming."""
    last = QUADRATURE.section - 1
    steps = torch.linspace(0, 1, QUADRATURE.section, dtype=left.dtype)
    rows = torch.arange(len(left))
    for _ in range(QUADRATURE.zooms):
        t = torch.lerp(left[:, None], right[:, None], steps)
        best = log(t.flatten()).view_as(t).argmax(1)
        left, right = t[rows, (best - 1).clamp_min(0)], t[rows, (best + 1).clamp_max(last)]
    return (left + right) / 2


def _across(log: LogDensity, peak: float, smallest: float, largest: float) -> Tensor:
    """Return sizes of scalars that lie evenly across one peak, as wide as the peak is."""
    size, sign = abs(peak), 1.0 if peak > 0 else -1.0
    ratio = QUADRATURE.farthest / QUADRATURE.nearest
    shells = torch.logspace(0, 1, QUADRATURE.shells, base=ratio, dtype=torch.double)
    shells = shells * QUADRATURE.nearest
    t = (size * torch.cat([1 - shells.flip(0), torch.ones(1), 1 + shells])).clamp(smallest, largest)
    density = (log(sign * t) - log(t.new_tensor([peak]))).exp()
    spread = torch.trapezoid(density * (t - size).square(), t) / torch.trapezoid(density, t)
    width = QUADRATURE.reach * float(spread.clamp_min(0).sqrt())
    points = torch.linspace(size - width, size + width, QUADRATURE.fine, dtype=t.dtype)
    return points.clamp(smallest, largest)
