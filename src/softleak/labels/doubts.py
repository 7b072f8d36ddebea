"""This module asks why the solutions that were found may not be all there are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.families import AnyLabel, SmoothedMixed
from softleak.labels.curve import misfit
from softleak.labels.messages import Doubt
from softleak.labels.minima import SEARCH
from softleak.labels.pseudo import PseudoLabels
from softleak.labels.scale import FACTOR_SEARCH, Rescaled, Segment, other_factors_fit
from softleak.labels.solutions import SolutionAt, Solutions


@dataclass(frozen=True)
class DoubtThresholds:
    """These thresholds decide when a label that fits need not be the only one."""

    coarse: float = (
        0.5  # L1: beyond it, the rounding of a label is not a straight line in that of G
    )
    level: float = 1e-3  # how far apart the entries of a flat label may be
    spare_bits: float = (
        24.0  # bits beyond what unknowns absorb: chance fits one time in sixteen million
    )
    indistinct: float = (
        16.0  # roundings: a label this close to the prediction leaves rounding errors
    )


DOUBT = DoubtThresholds()


WIDER = SmoothedMixed(3)  # what labels may be as well if nobody declared a family


def doubt_of(fitting: list[SolutionAt], solutions: Solutions, client: int) -> Doubt | None:
    """Return why the solutions may not be all there are, if there is a reason."""
    if any(f.candidate.rounding > DOUBT.coarse for f in fitting):
        return Doubt.COARSE
    if isinstance(solutions.family, AnyLabel) or solutions.unknowns < 0:
        return _doubt_without_equations(solutions)
    if fitting[0].equations <= solutions.unknowns:
        return Doubt.FEW
    if any(_indistinct(f, solutions) for f in fitting):
        return Doubt.PREDICTION
    if _factor_open(fitting, solutions, client):
        return Doubt.FACTOR
    if (
        not solutions.declared
        and solutions.scaled
        and any(is_flat(f.candidate.label) for f in fitting)
    ):
        return Doubt.FLAT
    chance = not solutions.declared and any(f.spare < DOUBT.spare_bits for f in fitting)
    return Doubt.CHANCE if chance and not _no_other_kind(solutions, client) else None


def _doubt_without_equations(solutions: Solutions) -> Doubt | None:
    """Return the doubt where a continuum fits, which no grid misses unless it is a surface."""
    if not isinstance(solutions.family, AnyLabel):
        return None
    if solutions.unknowns > 1:
        return Doubt.FEW  # the curve is one path through the set
    return Doubt.SIGN if solutions.tau is not None else None


def _indistinct(found: SolutionAt, solutions: Solutions) -> bool:
    """Return whether ``p − y`` may be a few roundings of ``p``, times any factor if that is
    unknown.
    """
    roundings = DOUBT.indistinct * solutions.relative
    if abs(found.candidate.scalar) <= roundings:
        return True
    if solutions.declared:
        return False  # a prediction of another family cannot be the label
    blown_up = solutions.scaled and abs(found.tau) <= FACTOR_SEARCH.largest_factor * roundings
    return blown_up and solutions.normalised and _of_roundings(found)


def _of_roundings(found: SolutionAt) -> bool:
    """Return whether roundings of the prediction look like this label behind a log-softmax.

    A model that takes a log-softmax turns roundings ``r`` into ``r − p Σr``. That is ``Σr`` times
    ``y − p`` of the label ``y = r/Σr``, whose entries are to each other as small whole numbers.
    """
    candidate = found.candidate
    largest = candidate.label.max()
    counts = torch.arange(1, DOUBT.indistinct + 1).to(candidate.label)[:, None]
    parts = counts * candidate.label / largest
    whole = (parts - parts.round()).abs() <= counts * candidate.rounding / largest
    return bool(whole.all(-1).any())


def _factor_open(fitting: list[SolutionAt], solutions: Solutions, client: int) -> bool:
    """Return whether labels at other factors fit as well.

    The labels that were found are then a part of a larger set. A family that nobody declared says
    little of how many classes a label has: where the prediction is one-hot, a mix of two classes
    lies on a line of mixes of three.
    """
    curve, family = solutions.curve, solutions.family if solutions.declared else WIDER
    if isinstance(curve, Segment) and not solutions.declared:
        best = curve.p.new_tensor([abs(f.candidate.scalar) for f in fitting])
        segment = curve.take(torch.full_like(best, client, dtype=torch.long))
    elif isinstance(curve, Rescaled):
        ends = [(f, (f.candidate.scalar, f.candidate.low, f.candidate.high)) for f in fitting]
        along = [f.tau * one / f.candidate.scalar for f, three in ends for one in three]
        t = curve.pseudo.u.new_tensor(along)
        segment, best = curve.take(torch.full_like(t, client, dtype=torch.long)).segment(t)
    else:
        return False
    return other_factors_fit(segment, family, best, SEARCH.fit)


def is_flat(label: Tensor) -> bool:
    """Return whether all classes are alike in a label (C,)."""
    return float(label.max() - label.min()) <= DOUBT.level


def _no_other_kind(solutions: Solutions, client: int) -> bool:
    """Return whether every label that fits, of whatever kind, is of the family.

    Where the softmax is one-hot to the last bit that is so: the labels of a whole interval fit, and
    beyond it an entry turns negative.
    """
    curve = solutions.curve
    if not isinstance(curve, PseudoLabels):
        return False
    mine = curve.take(solutions.minima.client.new_tensor([client]))
    for rows, grid in mine.interval().grids():
        each = mine.take(torch.zeros_like(rows))
        of_any_kind = misfit(each, AnyLabel(), grid) <= SEARCH.fit
        if bool((of_any_kind & (misfit(each, solutions.family, grid) > SEARCH.fit)).any()):
            return False
    return True
