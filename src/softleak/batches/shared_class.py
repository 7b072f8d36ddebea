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
from softleak.batches.rounding import equation_errors, row_errors
from softleak.batches.saturated import biorthogonal, unexplained
from softleak.batches.supports import Supports

SHARES = 400  # the number of coefficients that are looked at, between none and all
VALLEYS = 3  # the number of lowest places among them that are worth a local search


def shared_out(
    space: HeadSpace, supports: Supports, found: FoundSamples, *, scaled: bool = True
) -> list[FoundSamples]:
    """Return the best shares of the coefficients for each sample of a class that another has."""
    if not supports.unknowns:
        return []
    alike = (found.kind[:, None] == found.kind[None]).sum(1) > 1
    return [
        shared
        for i in alike.nonzero()[:, 0].tolist()
        for shared in _best_shares(space, supports, found, i, scaled=scaled)
    ]


def _best_shares(
    space: HeadSpace, supports: Supports, found: FoundSamples, row: int, *, scaled: bool
) -> list[FoundSamples]:
    """Return the samples with those coefficients of one label that explain the gradient best.

    Residuals count by their rounding: the faint probabilities of a sure sample tell most.
    """
    at, kind = found.at, found.kind
    T = supports.directions[kind[row]][:, -1]
    c = torch.linspace(0, 1, SHARES, dtype=T.dtype, device=T.device)
    label = supports.origin[kind[row]] + c[:, None] * T
    a = at.a.expand(SHARES, -1, -1).clone()
    a[:, row] = space.left(at.p[row] - label)
    many = SamplePoints(a, *(part.expand(SHARES, -1, -1) for part in (at.b, at.label, at.p)))
    whole = biorthogonal(space, many, scaled=scaled)
    errors = equation_errors(space, row_errors(space), whole.a, whole.b, whole.p)
    misfit = unexplained(space, supports, whole, kind, errors)
    return [
        replace(found, at=SamplePoints(*(part[i] for part in _parts(whole))))
        for i in lowest_valleys(misfit)
    ]


def lowest_valleys(misfit: Tensor) -> list[int]:
    """Return the places of the lowest local minima of misfits (N,), the lowest first."""
    misfit = torch.nan_to_num(misfit, nan=torch.inf)
    walled = torch.nn.functional.pad(misfit, (1, 1), value=torch.inf)
    valley = (misfit < walled[:-2]) & (misfit <= walled[2:])
    order = misfit.where(valley, torch.inf).argsort()
    return order[: min(VALLEYS, int(valley.sum()))].tolist()


def _parts(at: SamplePoints) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return at.a, at.b, at.label, at.p
