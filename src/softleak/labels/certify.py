"""The certificate: from the minima of a search to a status, a label, and all that fits as well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.factors import Factors
from softleak.labels.curve import Curve
from softleak.labels.evidence.weigh import Verdict
from softleak.labels.families import KNOWN, AnyLabel, Family
from softleak.labels.messages import why, why_none
from softleak.labels.search import SECTION, Minima
from softleak.results import Candidate, Recovery, Status

NARROW = 1e-3  # relative width of an interval
SAME = 1e-12  # relative: two roads to one minimum end this close together


@dataclass(frozen=True, eq=False)
class Solutions:
    """What a search found along a curve. ``tau`` (N,) is set where the curve is a segment."""

    curve: Curve
    family: Family
    minima: Minima
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
    """A candidate, the scalar of its feature, and the L1 size of the rounding in its label."""

    candidate: Candidate
    tau: float
    rounding: float


def _describe(solutions: Solutions) -> Iterator[tuple[int, _Found]]:
    """Every minimum with its label and, if it fits, the labels of the scalars around it."""
    minima, curve = solutions.minima, solutions.curve.take(solutions.minima.client)
    label, size = curve.labels(minima.scalar[:, None])
    rounding = curve.errors(minima.scalar[:, None], label).sum((-1, -2))
    tau = minima.scalar if solutions.tau is None else solutions.tau[minima.client]
    scalar = size[:, 0] * tau.sign()
    ends = torch.stack([minima.low, minima.high]) * (scalar / minima.scalar)
    around = iter(_around(curve, minima))
    rows = zip(
        minima.client.tolist(), scalar.tolist(), ends.amin(0).tolist(), ends.amax(0).tolist(),
        minima.misfit.tolist(), minima.fits.tolist(), label, tau.tolist(), rounding.tolist(),
        strict=True,
    )  # fmt: skip
    for client, t, low, high, misfit, fits, y, feature_scalar, error in rows:
        candidate = Candidate(t, low, high, misfit, fits, y[0], next(around) if fits else y)
        yield client, _Found(candidate, feature_scalar, error)


def _around(curve: Curve, minima: Minima) -> Tensor:
    """(K', S, C) labels from one end to the other of the minima that fit."""
    good = minima.fits.nonzero()[:, 0]
    low, high = minima.low[good, None], minima.high[good, None]
    narrow = bool(((high - low) <= NARROW * low.abs()).all())  # a curve is straight there
    points = 3 if narrow else SECTION
    steps = torch.linspace(0, 1, points, dtype=low.dtype, device=low.device)
    return curve.take(good).labels(torch.lerp(low, high, steps))[0]


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
    alone = len(fitting) == 1 and not verdict.conflicts(client)
    unique = alone and best.candidate.width <= tolerance
    if best.candidate.width > tolerance:
        best = replace(best, candidate=_centred(best.candidate))
    label = solutions.family.project(best.candidate.label).clamp_min(0)
    label = label / label.sum()
    every = torch.cat([f.candidate.labels for f in fitting])
    error = float((every - label).abs().sum(-1).max()) + 4 * best.rounding
    t = best.candidate
    return Recovery(
        status=Status.UNIQUE if unique else Status.AMBIGUOUS,
        message=why(unique, [f.candidate for f in fitting], verdict, client, tolerance),
        label=label,
        feature=factors.sigma[client] / best.tau * factors.v[client],
        scalar=t.scalar,
        error=error,
        feature_error=_feature_error(t, solutions, verdict, client) + factors.relative,
        scale=best.tau / t.scalar,
        family=_simplest(label, error) if unique else None,
        candidates=candidates,
        evidence=evidence,
    )


def _feature_error(t: Candidate, solutions: Solutions, verdict: Verdict, client: int) -> float:
    """Relative: that of τ, which a segment takes from the evidence and a search from its width."""
    if solutions.tau is not None:
        return float(verdict.error[client] / verdict.scalar[client].abs())
    return max(t.high - t.scalar, t.scalar - t.low) / abs(t.scalar)


def _centred(candidate: Candidate) -> Candidate:
    """A wide candidate is best represented by its middle, the least wrong of its points."""
    middle = len(candidate.labels) // 2
    return replace(
        candidate, scalar=(candidate.low + candidate.high) / 2, label=candidate.labels[middle]
    )


def _simplest(label: Tensor, error: float) -> Family:
    for family in KNOWN:
        if float((label - family.project(label)).abs().sum()) <= error:
            return family
    return AnyLabel()
