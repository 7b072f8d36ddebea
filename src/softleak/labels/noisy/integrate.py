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
        level: a peak is found once the logarithm varies by less than this across its bracket.
        nothing: a point of the first grid this much lower than the highest peak is left out.
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
    level: float = 1e-6
    nothing: float = 60.0
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
        each stands for (the trapezoidal rule). Scalars without weight are left out.
    """
    steps = torch.linspace(0, 1, QUADRATURE.coarse, dtype=torch.double)
    size = smallest * (largest / smallest) ** steps
    sides = [(sign * size, log(sign * size)) for sign in (1.0, -1.0)]
    left, right = map(torch.cat, zip(*(_brackets(*side) for side in sides), strict=True))
    peaks, height = _zoomed(log, left, right)
    best = height.max()
    scalars, widths = [], []
    for t, coarse in sides:
        kept = (height > best - QUADRATURE.negligible) & (peaks.sign() == t.sign()[0])
        near = [
            _across(log, float(peak), float(top), smallest, largest)
            for peak, top in zip(peaks[kept], height[kept], strict=True)
        ]
        ordered, order = torch.cat([size, *near]).sort()
        gaps = F.pad(ordered.diff(), (1, 1))
        above = coarse > best - QUADRATURE.nothing
        counts = F.pad(above, (0, len(ordered) - len(size)), value=True)[order]
        scalars.append(t.sign()[0] * ordered[counts])
        widths.append(((gaps[1:] + gaps[:-1]) / 2)[counts])
    return torch.cat(scalars), torch.cat(widths)


def _brackets(t: Tensor, height: Tensor) -> tuple[Tensor, Tensor]:
    """Return both ends (M,) of the grid cells around the highest local maxima."""
    padded = F.pad(height, (1, 1), value=-torch.inf)
    peak = ((height >= padded[:-2]) & (height >= padded[2:])).nonzero()[:, 0]
    peak = peak[height[peak].argsort(descending=True)[: QUADRATURE.peaks]]
    return t[(peak - 1).clamp_min(0)], t[(peak + 1).clamp_max(len(t) - 1)]


def _zoomed(log: LogDensity, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return the highest point (M,) of each bracket and its height (M,), by repeated zooming.

    A bracket is left as it is once its heights agree, or once they are so far below those of
    another that its peak has no weight: between points of a smooth peak the density rises by less
    than it does from the lowest of them to the highest.
    """
    last = QUADRATURE.section - 1
    steps = torch.linspace(0, 1, QUADRATURE.section, dtype=left.dtype)
    known = torch.tensor([0, last // 2, last])  # the ends of a bracket and the point between them
    new = torch.tensor([i for i in range(last + 1) if i not in known.tolist()])
    top = torch.full_like(left, -torch.inf)
    rows = torch.arange(len(left))
    heights = log(torch.lerp(left[:, None], right[:, None], steps[known]).flatten()).view(-1, 3)
    for _ in range(QUADRATURE.zooms):
        t = torch.lerp(left[rows, None], right[rows, None], steps)
        height = torch.empty_like(t)
        height[:, known] = heights
        height[:, new] = log(t[:, new].flatten()).view(len(rows), -1)
        top[rows], best = height.max(1)
        each = torch.arange(len(rows))
        below, above = (best - 1).clamp_min(0), (best + 1).clamp_max(last)
        left[rows], right[rows] = t[each, below], t[each, above]
        # At an end of the bracket the next one is shorter, and its middle has not been seen.
        at_end = (above - below < 2).nonzero()[:, 0]
        heights = height[each[:, None], torch.stack([below, best, above], 1)]
        rise = top[rows] - height.amin(1)
        hopeless = top[rows] + rise < top.max() - QUADRATURE.negligible
        going = ~(hopeless | (rise < QUADRATURE.level))
        at_end = at_end[going[at_end]]
        if len(at_end):
            heights[at_end, 1] = log((left[rows[at_end]] + right[rows[at_end]]) / 2)
        rows, heights = rows[going], heights[going]
        if not len(rows):
            break
    return (left + right) / 2, top


def _across(log: LogDensity, peak: float, top: float, smallest: float, largest: float) -> Tensor:
    """Return sizes of scalars that lie evenly across one peak, as wide as the peak is."""
    size, sign = abs(peak), 1.0 if peak > 0 else -1.0
    ratio = QUADRATURE.farthest / QUADRATURE.nearest
    shells = torch.logspace(0, 1, QUADRATURE.shells, base=ratio, dtype=torch.double)
    shells = shells * QUADRATURE.nearest
    t = (size * torch.cat([1 - shells.flip(0), torch.ones(1), 1 + shells])).clamp(smallest, largest)
    density = (log(sign * t) - top).exp()
    spread = torch.trapezoid(density * (t - size).square(), t) / torch.trapezoid(density, t)
    width = QUADRATURE.reach * float(spread.clamp_min(0).sqrt())
    points = torch.linspace(size - width, size + width, QUADRATURE.fine, dtype=t.dtype)
    return points.clamp(smallest, largest)
