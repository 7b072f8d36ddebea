"""This module issues the certificate: from the minima of a search to a status and all that fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.factors import Factors
from softleak.families import KNOWN_FAMILIES, AnyLabel, Family
from softleak.labels.curve import Curve
from softleak.labels.doubts import doubt_of
from softleak.labels.equations import count_equations, spare_bits
from softleak.labels.evidence.combine import CombinedEvidence
from softleak.labels.messages import Doubt, Fitting, why, why_none
from softleak.labels.minima import SEARCH, Minima
from softleak.labels.solutions import SolutionAt, Solutions
from softleak.results import Candidate, Recovery, Status


@dataclass(frozen=True)
class CertificateSettings:
    """These settings turn minima into candidates."""

    label_roundings: float = 4.0  # times the rounding of a label: what its L1 error is bounded by
    path_points: int = 129  # labels along a wide interval
    narrow: float = 1e-3  # the relative width of an interval on which a curve is straight


CERTIFICATE = CertificateSettings()
UNTIED = 1e-3  # of the error of a label: how far equal entries are set apart


def certify(
    solutions: Solutions, factors: Factors, verdict: CombinedEvidence, tolerance: float
) -> Iterator[Recovery]:
    """Yield one recovery per client, in their order."""
    by_client: list[list[SolutionAt]] = [[] for _ in factors.sigma]
    for client, one in _describe(solutions):
        by_client[client].append(one)
    for client, found in enumerate(by_client):
        yield _judge(_merged(found), solutions, factors, verdict, client, tolerance)


def _describe(solutions: Solutions) -> Iterator[tuple[int, SolutionAt]]:
    """Yield every minimum with its label and, if it fits, the labels of the scalars around it."""
    minima, curve = solutions.minima, solutions.curve.take(solutions.minima.client)
    along = torch.stack([minima.scalar, minima.low, minima.high], 1)
    label, size = curve.labels(along)
    rounding = curve.errors(along, label).sum(-1).amax(-1)  # the largest along the interval
    tau = minima.scalar if solutions.tau is None else solutions.tau[minima.client]
    scalar = size[:, 0] * tau.sign()
    ends = torch.stack([minima.low, minima.high]) * (scalar / minima.scalar)
    paths = _around(curve, minima, scalar / minima.scalar)
    fitting = minima.fits.nonzero()[:, 0]  # the others prove nothing, whatever their equations
    equations, spare = torch.zeros_like(scalar), torch.zeros_like(scalar)
    equations[fitting] = _equations(solutions, label[fitting, 0])
    spare[fitting] = _spare(solutions, curve.take(fitting), minima.scalar[fitting])
    rows = zip(
        minima.client.tolist(), scalar.tolist(), ends.amin(0).tolist(), ends.amax(0).tolist(),
        minima.misfit.tolist(), minima.fits.tolist(), label, tau.tolist(), rounding.tolist(),
        equations.tolist(), spare.tolist(), strict=True,
    )  # fmt: skip
    for index, (client, t, low, high, off, fits, y, feature, error, count, bits) in enumerate(rows):
        path, labels = paths[index] if fits else (scalar[:1], y[:1])
        candidate = Candidate(
            t, low, high, off, fits, y[0], labels, CERTIFICATE.label_roundings * error
        )
        yield client, SolutionAt(candidate, feature, path, count, bits, solutions.tau is None)


def _equations(solutions: Solutions, label: Tensor) -> Tensor:
    """Return the equations (K,) of the family, none where nothing is left to determine."""
    if solutions.unknowns < 0:
        return label.new_zeros(len(label))
    return count_equations(solutions.family, label)


def _spare(solutions: Solutions, curve: Curve, scalar: Tensor) -> Tensor:
    """Return the spare bits (K,) of minima, without limit where nothing is left to determine.

    Nor are they limited where somebody declared the family, since no chance made the label one.
    """
    decided = solutions.unknowns < 1 or isinstance(solutions.family, AnyLabel)
    if decided or solutions.declared:
        return torch.full_like(scalar, torch.inf)
    return spare_bits(curve, solutions.family, scalar, solutions.unknowns)


def _around(curve: Curve, minima: Minima, gain: Tensor) -> dict[int, tuple[Tensor, Tensor]]:
    """Return scalars (S,) times ``gain``, and labels (S, C), along each minimum that fits."""
    narrow = (
        minima.high - minima.low
    ) <= CERTIFICATE.narrow * minima.low.abs()  # a curve is straight there
    found: dict[int, tuple[Tensor, Tensor]] = {}
    for points, some in ((3, narrow), (CERTIFICATE.path_points, ~narrow)):
        rows = (minima.fits & some).nonzero()[:, 0]
        if not len(rows):
            continue
        low, high = minima.low[rows, None], minima.high[rows, None]
        steps = torch.linspace(0, 1, points, dtype=low.dtype, device=low.device)
        along = low * (high / low) ** steps
        labels = curve.take(rows).labels(along)[0]
        scalars = along * gain[rows, None]
        found |= zip(rows.tolist(), zip(scalars, labels, strict=True), strict=True)
    return found


def _merged(found: list[SolutionAt]) -> list[SolutionAt]:
    """Sort the solutions, best first, and drop those whose interval meets that of a better one."""
    kept: list[SolutionAt] = []
    for one in sorted(found, key=lambda f: f.candidate.misfit):
        if not any(k.candidate.fits and _meet(k.candidate, one.candidate) for k in kept):
            kept.append(one)
    return kept


def _meet(a: Candidate, b: Candidate) -> bool:
    slack = SEARCH.same * abs(a.scalar)
    return a.low - slack <= b.high and b.low - slack <= a.high


def _judge(
    found: list[SolutionAt], solutions: Solutions, factors: Factors, verdict: CombinedEvidence,
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
    doubt = Doubt.UNSIGNED if verdict.unsigned(client) else doubt_of(fitting, solutions, client)
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


def _feature_error(
    t: Candidate, solutions: Solutions, verdict: CombinedEvidence, client: int
) -> float:
    """Return the relative error of τ, from the evidence or from the width of the search."""
    if solutions.tau is not None:
        return float(verdict.error[client] / verdict.scalar[client].abs())
    return max(t.high - t.scalar, t.scalar - t.low) / abs(t.scalar)


def _centred(found: SolutionAt) -> SolutionAt:
    """Represent a wide candidate by its middle, the least wrong of its points."""
    labels = found.candidate.labels
    ends = [(labels - end).abs().sum(-1) for end in (labels[0], labels[-1])]
    middle = int(torch.maximum(*ends).argmin())
    t = float(found.path[middle])
    # Where a search ran over τ itself the feature moves along.
    tau = found.tau * (t / found.candidate.scalar if found.moves else 1.0)
    candidate = replace(found.candidate, scalar=t, label=labels[middle])
    return replace(found, candidate=candidate, tau=tau)


def simplest_family(label: Tensor, error: float) -> Family:
    """Return the simplest known family that a label (C,) belongs to, to within its error in L1.

    A family leaves tied entries free together. So that two equal halves are not called one-hot,
    entries are first set apart by a thousandth of the error.
    """
    places = torch.arange(len(label), dtype=label.dtype, device=label.device) / len(label)
    apart = label - UNTIED * error * places
    for family in KNOWN_FAMILIES:
        if float((apart - family.project(apart)).abs().sum()) <= error:
            return family
    return AnyLabel()
