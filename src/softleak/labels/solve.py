"""Solve one batch of single-sample shares: the curve, the search, the certificate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from softleak.core.factors import Factors
from softleak.core.families import ANY_LABEL, Family, SmoothedMixed
from softleak.core.head import Head
from softleak.core.knowledge import Knowledge
from softleak.core.results import Recovery, Status
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.labels.certify import Solutions, certify
from softleak.labels.curve import Curve, Interval, misfit
from softleak.labels.evidence.probes import evidence_for
from softleak.labels.evidence.relation import Estimate, combine
from softleak.labels.pseudo import PseudoLabels, Rescaled, Segment
from softleak.labels.review import review
from softleak.labels.search import Minima, search

EVIDENCE_ERRORS = 4.0  # times the error of evidence: how far a family's solution may be from it
EVIDENCE_NEAREST = 1e-3  # of τ: how close to zero an interval of evidence may come
EVIDENCE_AROUND = 1e-3  # of τ: where a solution is looked for once evidence has decided

WIDEST: Family = SmoothedMixed(2)  # one-hot, smoothed and mixed labels are all among these
DECIDED = -1  # nothing is left for a family's equations to determine

Attempt = Callable[[Tensor, Estimate], Solutions]  # of some clients (M,), and what evidence says


def solve(
    subject: Subject, knowledge: Knowledge, factors: Factors, shares: Sequence[GradientShare]
) -> list[Recovery]:
    """Recover N clients: those whose evidence decides by it, the others by the family."""
    if not shares:
        return []
    head = subject.head
    pseudo = PseudoLabels.of(head, factors)
    verdict = combine(evidence_for(subject, knowledge), shares, head, factors)
    found = _solve(head, knowledge, factors, pseudo, verdict)
    updates = [share.noise(head.weight_name) > 0 for share in shares]
    return review(found, pseudo, verdict, knowledge.scale, updates)


def _solve(
    head: Head, knowledge: Knowledge, factors: Factors, pseudo: PseudoLabels, verdict: Estimate
) -> list[Recovery]:
    family, scaled = knowledge.family or WIDEST, knowledge.scale_unknown

    def by_family(rows: Tensor, _: Estimate) -> Solutions:
        some = pseudo.take(rows)
        return searched(Rescaled(some, family), family, 2) if scaled else searched(some, family)

    answers = solve_each(
        head, knowledge, factors, verdict,
        lambda rows, said: _by_evidence(knowledge, pseudo.take(rows), said), by_family,
    )  # fmt: skip
    if scaled and knowledge.family is None:
        # Outside the usual families the feature is still exact; the label lies on a segment.
        decided = verdict.decided.tolist()
        lost = [i for i, one in enumerate(answers) if decided[i] and one.status != Status.UNIQUE]
        if lost:
            rows = torch.tensor(lost, device=verdict.decided.device)
            anything = replace(knowledge, family=ANY_LABEL)
            some = factors.take(rows), pseudo.take(rows), verdict.take(rows)
            for i, one in zip(lost, _solve(head, anything, *some), strict=True):
                answers[i] = one
    return answers


def solve_each(
    head: Head, knowledge: Knowledge, factors: Factors, verdict: Estimate, by_evidence: Attempt,
    by_family: Attempt,
) -> list[Recovery]:  # fmt: skip
    """Return certified answers along a curve: by evidence where that decides, else by family."""
    answers: dict[int, Recovery] = {}
    for chosen, attempt in ((verdict.decided, by_evidence), (~verdict.decided, by_family)):
        rows = chosen.nonzero()[:, 0]
        if len(rows):
            said = verdict.take(rows)
            solutions = replace(
                attempt(rows, said), relative=factors.relative,
                declared=knowledge.family is not None, normalised=head.normalised,
            )  # fmt: skip
            found = certify(solutions, factors.take(rows), said, knowledge.tolerance)
            answers.update(zip(rows.tolist(), found, strict=True))
    return [answers[i] for i in range(len(factors.sigma))]


def searched(curve: Curve, family: Family, unknowns: int = 1) -> Solutions:
    """Return the solutions where only the head speaks: all scalars are searched."""
    return Solutions(curve, family, search(curve, family, curve.interval()), unknowns)


def _by_evidence(knowledge: Knowledge, pseudo: PseudoLabels, verdict: Estimate) -> Solutions:
    """Return the solutions where τ is known; the family, if any, only has to pick the label."""
    tau, error = verdict.scalar, verdict.error
    if knowledge.scale_unknown:
        segment = Segment.at(pseudo, tau, error)
        return replace(searched(segment, knowledge.family or WIDEST), tau=tau)
    if knowledge.family is not None:
        margin = error / tau.abs() + EVIDENCE_AROUND
        everyone = torch.arange(len(tau), device=tau.device)
        near = Interval(everyone, tau.sign(), tau.abs() / (1 + margin), tau.abs() * (1 + margin))
        found = search(pseudo, knowledge.family, near)
        middle, reach = tau[found.client], EVIDENCE_ERRORS * error[found.client]
        both = found.within(middle - reach, middle + reach)
        return Solutions(pseudo, knowledge.family, both, DECIDED)
    return Solutions(pseudo, ANY_LABEL, _given(pseudo, verdict), DECIDED)


def _given(pseudo: PseudoLabels, verdict: Estimate) -> Minima:
    """Return each client's τ, and every other that its evidence gives in contradiction to it."""
    rows = enumerate(zip(verdict.scalar.tolist(), verdict.error.tolist(), strict=True))
    flat = [(client, scalar, error) for client, (scalar, error) in rows]
    for client in range(len(flat)):
        others = (other for other in verdict.conflicts(client) if other.holds)
        flat += [(client, other.scalar, other.error) for other in others]
    table = torch.tensor(flat, dtype=pseudo.u.dtype, device=pseudo.u.device)
    owner, t, error = table[:, 0].long(), table[:, 1], table[:, 2]
    # Evidence that does not even tell the sign leaves the scalars of this one down to almost zero.
    near = t - error.minimum(t.abs() * (1 - EVIDENCE_NEAREST)) * t.sign()
    far = t + error * t.sign()
    found = misfit(pseudo.take(owner), ANY_LABEL, torch.stack([t, near, far], 1)).amin(-1)
    return Minima(owner, t, near.minimum(far), near.maximum(far), found)
