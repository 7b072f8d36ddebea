"""The certificate: from the minima of a search to a status, a label, and all that fits as well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.factors import Factors
from softleak.labels.curve import Curve, misfit
from softleak.labels.equations import count_equations, spare_bits
from softleak.labels.evidence.weigh import Verdict
from softleak.labels.families import KNOWN, AnyLabel, Family
from softleak.labels.messages import Doubt, Fitting, why, why_none
from softleak.labels.pseudo import PseudoLabels
from softleak.labels.search import FIT, SAME, Minima
from softleak.results import Candidate, Recovery, Status

SURE = 4.0  # times the rounding of a label's entries: what its L1 error is bounded by
PATH = 129  # labels along a wide interval
NARROW = 1e-3  # relative width of an interval
COARSE = 0.5  # in L1: beyond it the rounding of a label is no longer a straight line in that of G
LEVEL = 1e-3  # how far apart the entries of a flat label may be
SPARE_BITS = 24.0  # tested beyond what the unknowns absorb: a chance fit in sixteen million
INDISTINCT = 16.0  # roundings: a label this close to the prediction leaves a gradient of rounding


@dataclass(frozen=True, eq=False)
class Solutions:
    """What a search found along a curve. ``tau`` (N,) is set where the curve is a segment."""

    curve: Curve
    family: Family
    minima: Minima
    unknowns: int  # that the family's equations have to determine
    tau: Tensor | None = None
    relative: float = 0.0  # the rounding of what the client computed
    declared: bool = True  # somebody said that labels are of this family


def certify(
    solutions: Solutions, factors: Factors, verdict: Verdict, tolerance: float
) -> Iterator[Recovery]:
    """One recovery a client, in order."""
    by_client: list[list[_Found]] = [[] for _ in factors.sigma]
    for client, one in _describe(solutions):
        by_client[client].append(one)
    for client, found in enumerate(by_client):
        yield _judge(_merged(found), solutions, factors, verdict, client, tolerance)


@dataclass(frozen=True, eq=False)
class _Found:
    """A candidate and the scalar of its feature.

    ``path`` (S,) are the scalars of the labels along it, ``equations`` how many its family imposes.
    """

    candidate: Candidate
    tau: float
    path: Tensor
    equations: float
    spare: float  # bits that the equations test beyond what the unknowns absorb
    moves: bool  # whether the feature's scalar is the one searched for


def _describe(solutions: Solutions) -> Iterator[tuple[int, _Found]]:
    """Every minimum with its label and, if it fits, the labels of the scalars around it."""
    minima, curve = solutions.minima, solutions.curve.take(solutions.minima.client)
    label, size = curve.labels(minima.scalar[:, None])
    rounding = _rounding(curve, minima)
    tau = minima.scalar if solutions.tau is None else solutions.tau[minima.client]
    scalar = size[:, 0] * tau.sign()
    ends = torch.stack([minima.low, minima.high]) * (scalar / minima.scalar)
    paths = _around(curve, minima, scalar / minima.scalar)
    equations = count_equations(solutions.family, label[:, 0])
    spare = _spare(solutions, curve, scalar)
    rows = zip(
        minima.client.tolist(), scalar.tolist(), ends.amin(0).tolist(), ends.amax(0).tolist(),
        minima.misfit.tolist(), minima.fits.tolist(), label, tau.tolist(), rounding.tolist(),
        equations.tolist(), spare.tolist(), strict=True,
    )  # fmt: skip
    for index, (client, t, low, high, off, fits, y, feature, error, count, bits) in enumerate(rows):
        path, labels = paths[index] if fits else (scalar[:1], y)
        candidate = Candidate(t, low, high, off, fits, y[0], labels, SURE * error)
        yield client, _Found(candidate, feature, path, count, bits, solutions.tau is None)


def _rounding(curve: Curve, minima: Minima) -> Tensor:
    """(K,) the L1 size of the rounding in a label, the largest along the interval that fits."""
    along = torch.stack([minima.scalar, minima.low, minima.high], 1)
    return curve.errors(along, curve.labels(along)[0]).sum(-1).amax(-1)


def _spare(solutions: Solutions, curve: Curve, scalar: Tensor) -> Tensor:
    """(K,) the spare bits of minima; without limit where nothing is left to determine."""
    if solutions.unknowns < 1 or isinstance(solutions.family, AnyLabel):
        return torch.full_like(scalar, torch.inf)
    minima = solutions.minima
    return spare_bits(curve, solutions.family, minima.scalar, solutions.unknowns)


def _around(curve: Curve, minima: Minima, gain: Tensor) -> dict[int, tuple[Tensor, Tensor]]:
    """Scalars (S,), times ``gain``, and labels (S, C) from end to end of each minimum that fits."""
    narrow = (minima.high - minima.low) <= NARROW * minima.low.abs()  # a curve is straight there
    found: dict[int, tuple[Tensor, Tensor]] = {}
    for points, some in ((3, narrow), (PATH, ~narrow)):
        rows = (minima.fits & some).nonzero()[:, 0]
        low, high = minima.low[rows, None], minima.high[rows, None]
        steps = torch.linspace(0, 1, points, dtype=low.dtype, device=low.device)
        along = low * (high / low) ** steps
        labels = curve.take(rows).labels(along)[0]
        scalars = along * gain[rows, None]
        found |= zip(rows.tolist(), zip(scalars, labels, strict=True), strict=True)
    return found


def _merged(found: list[_Found]) -> list[_Found]:
    """Best first, without those whose interval meets that of a better one."""
    kept: list[_Found] = []
    for one in sorted(found, key=lambda f: f.candidate.misfit):
        if not any(k.candidate.fits and _meet(k.candidate, one.candidate) for k in kept):
            kept.append(one)
    return kept


def _meet(a: Candidate, b: Candidate) -> bool:
    slack = SAME * abs(a.scalar)
    return a.low - slack <= b.high and b.low - slack <= a.high


def _judge(
    found: list[_Found], solutions: Solutions, factors: Factors, verdict: Verdict,
    client: int, tolerance: float,
) -> Recovery:  # fmt: skip
    candidates = tuple(f.candidate for f in found)
    fitting = [f for f in found if f.candidate.fits]
    evidence = verdict.pieces[client]
    if not fitting:
        return Recovery(
            Status.NO_SOLUTION, why_none(solutions.family, evidence != ()),
            candidates=candidates, evidence=evidence,
        )  # fmt: skip
    best = fitting[0]
    doubt = _doubt(fitting, solutions, client)
    complete = doubt is None and not verdict.conflicts(client)
    if best.candidate.width > tolerance:
        best = _centred(best)
    label = solutions.family.project(best.candidate.label).clamp_min(0)
    label = label / label.sum()
    every = torch.cat([f.candidate.labels for f in fitting])
    error = float((every - label).abs().sum(-1).max()) + max(f.candidate.rounding for f in fitting)
    alone = len(fitting) == 1 and complete and best.equations > solutions.unknowns
    unique = alone and max(best.candidate.width, error) <= tolerance
    all_fitting = Fitting([f.candidate for f in fitting], error, tolerance)
    t = best.candidate
    return Recovery(
        status=Status.UNIQUE if unique else Status.AMBIGUOUS,
        message=why(unique, doubt, all_fitting, verdict, client, solutions.family),
        label=label,
        feature=factors.sigma[client] / best.tau * factors.v[client],
        scalar=t.scalar,
        error=error,
        feature_error=_feature_error(t, solutions, verdict, client) + factors.feature_error(client),
        scale=best.tau / t.scalar,
        family=simplest_family(label, error),
        candidates=candidates,
        evidence=evidence,
        complete=complete,
    )


def _doubt(fitting: list[_Found], solutions: Solutions, client: int) -> Doubt | None:
    """Why the solutions may not be all there are, if there is a reason."""
    if any(f.candidate.rounding > COARSE for f in fitting):
        return Doubt.COARSE
    if isinstance(solutions.family, AnyLabel) and solutions.unknowns > 1:
        return Doubt.FEW  # the set has two dimensions, and the curve is one path through it
    if isinstance(solutions.family, AnyLabel) and solutions.tau is not None:
        return Doubt.SIGN
    if isinstance(solutions.family, AnyLabel) or solutions.unknowns < 0:
        return None  # without equations what fits is a continuum, which no grid can miss
    if fitting[0].equations <= solutions.unknowns:
        return Doubt.FEW
    if any(abs(f.candidate.scalar) <= INDISTINCT * solutions.relative for f in fitting):
        return Doubt.PREDICTION
    if not solutions.declared and solutions.tau is not None and any(map(_flat, fitting)):
        return Doubt.FLAT
    chance = not solutions.declared and any(f.spare < SPARE_BITS for f in fitting)
    return Doubt.CHANCE if chance and not _no_other_kind(solutions, client) else None


def _flat(found: _Found) -> bool:
    """Whether all classes are alike in a label."""
    y = found.candidate.label
    return float(y.max() - y.min()) <= LEVEL


def _no_other_kind(solutions: Solutions, client: int) -> bool:
    """Whether every label that fits, of whatever kind, is of the family, so that none is left out.

    Where the softmax is one-hot to the last bit that is so: the labels of a whole interval fit, and
    beyond it an entry turns negative.
    """
    curve = solutions.curve
    if not isinstance(curve, PseudoLabels):
        return False
    mine = curve.take(solutions.minima.client.new_tensor([client]))
    for rows, grid in mine.interval().grids():
        each = mine.take(torch.zeros_like(rows))
        of_any_kind = misfit(each, AnyLabel(), grid) <= FIT
        if bool((of_any_kind & (misfit(each, solutions.family, grid) > FIT)).any()):
            return False
    return True


def _feature_error(t: Candidate, solutions: Solutions, verdict: Verdict, client: int) -> float:
    """Relative: that of τ, which a segment takes from the evidence and a search from its width."""
    if solutions.tau is not None:
        return float(verdict.error[client] / verdict.scalar[client].abs())
    return max(t.high - t.scalar, t.scalar - t.low) / abs(t.scalar)


def _centred(found: _Found) -> _Found:
    """A wide candidate is best represented by its middle, the least wrong of its points."""
    labels = found.candidate.labels
    ends = [(labels - end).abs().sum(-1) for end in (labels[0], labels[-1])]
    middle = int(torch.maximum(*ends).argmin())
    t = float(found.path[middle])
    # Where a search ran over τ itself the feature moves along.
    tau = found.tau * (t / found.candidate.scalar if found.moves else 1.0)
    candidate = replace(found.candidate, scalar=t, label=labels[middle])
    return replace(found, candidate=candidate, tau=tau)


def simplest_family(label: Tensor, error: float) -> Family:
    """The simplest known family that a label (C,) belongs to, to within its error in L1."""
    for family in KNOWN:
        if float((label - family.project(label)).abs().sum()) <= error:
            return family
    return AnyLabel()
