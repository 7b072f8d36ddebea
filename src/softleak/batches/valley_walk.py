"""This module walks along the valley in which two samples of one class share their labels out.

Of two samples of one class that are much alike, a joint search knows the sum of both labels'
coefficients at once, but follows the curved valley of their difference only slowly. With the label
of one sample held at a value, all else is solved for in a few steps. So the label is held at one
value after another, each solved from where the last one led. A walk over all values shows where
valleys are, and parabolas lead to the bottom of one.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from softleak.batches.candidates import FoundSamples
from softleak.batches.head_space import HeadSpace
from softleak.batches.joint import JointSystem, polish
from softleak.batches.one_sample import SamplePoints
from softleak.batches.saturated import biorthogonal
from softleak.batches.shared_class import lowest_valleys
from softleak.batches.supports import Supports

VALLEY_STEPS = 33  # the number of coefficients that a label is held at, between none and all
PARABOLAS = 6  # the number of parabolas that lead to the bottom
FIRST_WIDTH, LEAST_WIDTH = 1e-2, 1e-5  # the distance of two coefficients of a parabola
LONGEST_MOVE = 8.0  # the longest step to the bottom of a parabola, in widths


def walk_valley(
    space: HeadSpace, supports: Supports, found: FoundSamples, *, scaled: bool = True
) -> list[FoundSamples]:
    """Return the samples at the lowest places of the valley; none if no two are of one class."""
    alike = (found.kind[:, None] == found.kind[None]).sum(1) > 1
    if not supports.unknowns or not bool(alike.any()):
        return []
    row = int(found.at.p.amax(-1).where(alike, torch.inf).argmin())  # the least sure of them
    own, at = supports.take(found.kind), biorthogonal(space, found.at, scaled=scaled)
    points, misfits = [], []
    for c in torch.linspace(0, 1, VALLEY_STEPS, dtype=at.a.dtype, device=at.a.device):
        a = at.a.clone()
        a[row] = space.left(at.p[row] - _held(own, row, c).origin[row])
        start = biorthogonal(space, replace(at, a=a), scaled=scaled)
        misfit, point = _solved_with(space, own, start, row, c, scaled=scaled)
        at = point if bool(misfit.isfinite()) else at
        points.append(at)
        misfits.append(misfit)
    best = lowest_valleys(torch.stack(misfits))
    return [replace(found, at=points[i]) for i in best]


def descend_valley(system: JointSystem, x: Tensor, row: int) -> SamplePoints:
    """Return the samples at the bottom of the valley that unknowns (U,) are in.

    Args:
        system: the system of all samples, each on its own flat of labels.
        x: (U,) a point of it.
        row: the sample whose label is least well known.
    """
    space, own, scaled = system.space, system.supports, system.scaled
    at, c, width = system.point(x), system.unpack(x)[1][row, -1], FIRST_WIDTH
    for _ in range(PARABOLAS):
        costs, points = zip(
            *(_solved_with(space, own, at, row, c + k * width, scaled=scaled) for k in (-1, 0, 1)),
            strict=True,
        )
        slope, bend = float(costs[2] - costs[0]) / 2, float(costs[0] - 2 * costs[1] + costs[2])
        move = -slope / bend if bend > 0 else -LONGEST_MOVE * (1 if slope > 0 else -1)
        move = max(-LONGEST_MOVE, min(LONGEST_MOVE, move))
        at = points[min(range(3), key=lambda k: float(costs[k]))]
        c, width = c + move * width, max(LEAST_WIDTH, abs(move) * width / 4)
        if width == LEAST_WIDTH:
            break
    return _solved_with(space, own, at, row, c, scaled=scaled)[1]


def _solved_with(
    space: HeadSpace, own: Supports, at: SamplePoints, row: int, c: Tensor, *, scaled: bool
) -> tuple[Tensor, SamplePoints]:
    """Return the mean square that is left with one coefficient held, and the samples there."""
    system, x = polish(space, _held(own, row, c), at, scaled=scaled)
    values = system.values(x[None], torch.zeros(1, dtype=torch.long))
    return values.square().mean(), system.point(x)


def _held(own: Supports, row: int, c: Tensor) -> Supports:
    """Return the flats of all samples, that of one with its last coefficient held."""
    origin, directions = own.origin.clone(), own.directions.clone()
    origin[row] += c * directions[row][:, -1]
    directions[row][:, -1] = 0.0
    return replace(own, origin=origin, directions=directions)
