"""Where the posterior is, on a closed interval of both signs, however narrow its peaks."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

LOG = Callable[[Tensor], Tensor]  # log densities (S,) at scalars (S,)

COARSE = 160  # points a sign
PEAKS = 6  # that are looked at
ZOOMS, SECTION = 13, 9  # levels of 4-fold zoom onto each
NEGLIGIBLE = 40.0  # in logarithm: peaks so much lower have no weight
SHELLS = 48  # points a side, evenly in logarithm, to tell a peak's width
NEAREST, FARTHEST = 1e-10, 0.5  # of the peak's scalar
FINE, REACH = 61, 7.0  # points across a peak, and how many widths they span a side


def quadrature(log: LOG, smallest: float, largest: float) -> tuple[Tensor, Tensor]:
    """Scalars (S,) of both signs where the density is, and the width (S,) each stands for."""
    steps = torch.linspace(0, 1, COARSE, dtype=torch.double)
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
        kept = peaks[log(peaks) > best - NEGLIGIBLE]
        near = [_across(log, float(peak), smallest, largest) for peak in kept]
        ordered = torch.cat([grid, *near]).sort().values
        scalars.append(sign * ordered)
        gaps = F.pad(ordered.diff(), (1, 1))
        widths.append((gaps[1:] + gaps[:-1]) / 2)
    return torch.cat(scalars), torch.cat(widths)


def _brackets(height: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Both ends (M,) of cells around the highest local maxima on a grid."""
    padded = F.pad(height, (1, 1), value=-torch.inf)
    peak = ((height >= padded[:-2]) & (height >= padded[2:])).nonzero()[:, 0]
    peak = peak[height[peak].argsort(descending=True)[:PEAKS]]
    return t[(peak - 1).clamp_min(0)], t[(peak + 1).clamp_max(len(t) - 1)]


def _zoomed(log: LOG, left: Tensor, right: Tensor) -> Tensor:
    """(M,) the highest point of each bracket."""
    steps = torch.linspace(0, 1, SECTION, dtype=left.dtype)
    rows = torch.arange(len(left))
    for _ in range(ZOOMS):
        t = torch.lerp(left[:, None], right[:, None], steps)
        best = log(t.flatten()).view_as(t).argmax(1)
        left, right = t[rows, (best - 1).clamp_min(0)], t[rows, (best + 1).clamp_max(SECTION - 1)]
    return (left + right) / 2


def _across(log: LOG, peak: float, smallest: float, largest: float) -> Tensor:
    """Sizes of scalars evenly across one peak, wherever its sides are."""
    size, sign = abs(peak), 1.0 if peak > 0 else -1.0
    shells = torch.logspace(0, 1, SHELLS, base=FARTHEST / NEAREST, dtype=torch.double) * NEAREST
    t = (size * torch.cat([1 - shells.flip(0), torch.ones(1), 1 + shells])).clamp(smallest, largest)
    density = (log(sign * t) - log(t.new_tensor([peak]))).exp()
    spread = torch.trapezoid(density * (t - size).square(), t) / torch.trapezoid(density, t)
    width = REACH * float(spread.clamp_min(0).sqrt())
    return torch.linspace(size - width, size + width, FINE, dtype=t.dtype).clamp(smallest, largest)
