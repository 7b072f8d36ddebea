"""This module tells samples of one class apart whose softmax is saturated.

If one of two samples of class k is saturated, its ``δ`` has the direction of the labels of class k.
Then whatever the label of the other gains, its own can lose: the sum of both coefficients is known
at once, and only the feature that follows for the saturated one tells how they share it. A step
along that valley is a long way for a local search, so all shares are looked at.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from softleak.batches.candidates import FoundSamples
from softleak.batches.head_space import HeadSpace
from softleak.batches.one_sample import SamplePoints
from softleak.batches.saturated import biorthogonal, unexplained
from softleak.batches.supports import Supports

SHARES = 400  # the number of coefficients that are looked at, between none and all


def shared_out(
    space: HeadSpace, supports: Supports, found: FoundSamples, *, scaled: bool = True
) -> list[FoundSamples]:
    """Return the best share of the coefficients for each sample of a class that another has."""
    if not supports.unknowns:
        return []
    alike = (found.kind[:, None] == found.kind[None]).sum(1) > 1
    return [
        _best_share(space, supports, found, int(i), scaled=scaled) for i in alike.nonzero()[:, 0]
    ]


def _best_share(
    space: HeadSpace, supports: Supports, found: FoundSamples, row: int, *, scaled: bool
) -> FoundSamples:
    """Return the samples with the coefficient of one label that explains the gradient best."""
    at, kind = found.at, found.kind
    T = supports.directions[kind[row]][:, -1]
    c = torch.linspace(0, 1, SHARES, dtype=T.dtype, device=T.device)
    label = supports.origin[kind[row]] + c[:, None] * T
    a = at.a.expand(SHARES, -1, -1).clone()
    a[:, row] = (at.p[row] - label) @ space.U
    many = SamplePoints(a, *(part.expand(SHARES, -1, -1) for part in (at.b, at.label, at.p)))
    whole = biorthogonal(space, many, scaled=scaled)
    best = int(unexplained(space, supports, whole, kind).argmin())
    return replace(found, at=SamplePoints(*(part[best] for part in _parts(whole))))


def _parts(at: SamplePoints) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return at.a, at.b, at.label, at.p
