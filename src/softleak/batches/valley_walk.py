"""This module walks along the valley in which two samples of one class share their labels out.

Of two samples of one class that the network is sure of, a joint search knows the sum of both labels'
coefficients at once, but follows the curved valley of their difference only slowly. So the label of
one sample is held at one value after another, all else is solved for from where the last value led,
and the lowest places of the valley are where a search of everything begins.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from softleak.batches.candidates import FoundSamples
from softleak.batches.head_space import HeadSpace
from softleak.batches.joint import polish
from softleak.batches.saturated import biorthogonal
from softleak.batches.shared_class import lowest_valleys
from softleak.batches.supports import Supports

VALLEY_STEPS = 33  # the number of coefficients that a label is held at, between none and all


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
        held = _held(own, row, c)
        a = at.a.clone()
        a[row] = (at.p[row] - held.origin[row]) @ space.U
        start = biorthogonal(space, replace(at, a=a), scaled=scaled)
        system, x = polish(space, held, start, scaled=scaled)
        misfit = system.values(x[None], found.kind[:1]).square().mean()
        if bool(misfit.isfinite()):
            at = system.point(x)
        points.append(at)
        misfits.append(misfit)
    best = lowest_valleys(torch.stack(misfits))
    return [replace(found, at=points[i]) for i in best]


def _held(own: Supports, row: int, c: Tensor) -> Supports:
    """Return the flats of all samples, that of one with its last coefficient held."""
    origin, directions = own.origin.clone(), own.directions.clone()
    origin[row] += c * directions[row][:, -1]
    directions[row][:, -1] = 0.0
    return replace(own, origin=origin, directions=directions)

