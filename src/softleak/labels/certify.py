"""The certificate: from the minima of a search to a status, a label, and all that fits as well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.factors import Factors
from softleak.labels.curve import Curve
from softleak.labels.equations import count_equations
from softleak.labels.evidence.weigh import Verdict
from softleak.labels.families import KNOWN, AnyLabel, Family
from softleak.labels.messages import Fitting, why, why_none
from softleak.labels.search import SAME, Minima
from softleak.results import Candidate, Recovery, Status

PATH = 129  # labels along a wide interval
NARROW = 1e-3  # relative width of an interval


@dataclass(frozen=True, eq=False)
class Solutions:
    """What a search found along a curve. ``tau`` (N,) is set where the curve is a segment."""

    curve: Curve
    family: Family
    minima: Minima
    unknowns: int  # that the family's equations have to determine
    tau: Tensor | None = None


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
    """A candidate, the scalar of its feature, and the L1 size of the rounding in its label.

    ``path`` (S,) are the scalars of the labels along it, ``equations`` how many its family imposes.
    """

    candidate: Candidate
    tau: float
    rounding: float
    path: Tensor
    equations: float
    moves: bool  # whether the feature's scalar is the one searched for


def _describe(solutions: Solutions) -> Iterator[tuple[int, _Found]]:
    """Every minimum with its label and, if it fits, the labels of the scalars around it."""
    minima, curve = solutions.minima, solutions.curve.take(solutions.minima.client)
    label, size = curve.labels(minima.scalar[:, None])
    rounding = curve.errors(minima.scalar[:, None], label).sum((-1, -2))
    tau = minima.scalar if solutions.tau is None else solutions.tau[minima.client]
    scalar = size[:, 0] * tau.sign()
    ends = torch.stack([minima.low, minima.high]) * (scalar / minima.scalar)
    along, around = _around(curve, minima)
    places = zip(along * (scalar / minima.scalar)[minima.fits, None], around, strict=True)
    equations = count_equations(solutions.family, label[:, 0])
    rows = zip(
        minima.client.tolist(), scalar.tolist(), ends.amin(0).tolist(), ends.amax(0).tolist(),
        minima.misfit.tolist(), minima.fits.tolist(), label, tau.tolist(), rounding.tolist(),
        equations.tolist(), strict=True,
    )  # fmt: skip
    for client, t, low, high, misfit, fits, y, feature_scalar, error, count in rows:
        path, labels = next(places) if fits else (scalar[:1], y)
        candidate = Candidate(t, low, high, misfit, fits, y[0], labels)
        yield client, _Found(candidate, feature_scalar, error, path, count, solutions.tau is None)


def _around(curve: Curve, minima: Minima) -> tuple[Tensor, Tensor]:
    """Scalars (K', S) and labels (K', S, C) from end to end of the minima that fit."""
    good = minima.fits.nonzero()[:, 0]
    low, high = minima.low[good, None], minima.high[good, None]
    narrow = bool(((high - low) <= NARROW * low.abs()).all())  # a curve is straight there
    points = 3 if narrow else PATH
    steps = torch.linspace(0, 1, points, dtype=low.dtype, device=low.device)
    along = low * (high / low) ** steps
    return along, curve.take(good).labels(along)[0]


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
    enough = best.equations > solutions.unknowns
    # Without equations what fits is a continuum, which no grid can miss.
    found_all = enough or isinstance(solutions.family, AnyLabel)
    complete = found_all and not verdict.conflicts(client)
    alone = len(fitting) == 1 and enough and complete
    if best.candidate.width > tolerance:
        best = _centred(best)
    label = solutions.family.project(best.candidate.label).clamp_min(0)
    label = label / label.sum()
    every = torch.cat([f.candidate.labels for f in fitting])
    error = float((every - label).abs().sum(-1).max()) + 4 * best.rounding
    unique = alone and max(best.candidate.width, error) <= tolerance
    all_fitting = Fitting([f.candidate for f in fitting], error, tolerance)
    t = best.candidate
    return Recovery(
        status=Status.UNIQUE if unique else Status.AMBIGUOUS,
        message=why(unique, enough, all_fitting, verdict, client),
        label=label,
        feature=factors.sigma[client] / best.tau * factors.v[client],
        scalar=t.scalar,
        error=error,
        feature_error=_feature_error(t, solutions, verdict, client) + factors.feature_error(client),
        scale=best.tau / t.scalar,
        family=_simplest(label, error) if unique else None,
        candidates=candidates,
        evidence=evidence,
        complete=complete,
    )


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


def _simplest(label: Tensor, error: float) -> Family:
    for family in KNOWN:
        if float((label - family.project(label)).abs().sum()) <= error:
            return family
    return AnyLabel()
