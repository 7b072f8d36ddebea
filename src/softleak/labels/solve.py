"""One batch of single-sample shares: the curve that applies, the search, and the certificate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from softleak.factors import Factors
from softleak.head import Head
from softleak.labels.certify import Solutions, certify
from softleak.labels.curve import Interval, misfit
from softleak.labels.evidence.relation import Relation
from softleak.labels.evidence.weigh import Verdict, weigh
from softleak.labels.families import AnyLabel, Family, SmoothedMixed
from softleak.labels.pseudo import PseudoLabels
from softleak.labels.review import review
from softleak.labels.scale import Rescaled, Segment
from softleak.labels.search import Minima, search
from softleak.results import Recovery, Status
from softleak.share import GradientShare, Scale

WIDEST: Family = SmoothedMixed(2)  # one-hot, smoothed and mixed labels are all among these
DECIDED = -1  # nothing is left for a family's equations to determine
SPARE = 4.0  # times the error of evidence: how far a family's solution may be from it
NEAREST = 1e-3  # of τ: how close to zero an interval of evidence may come
AROUND = 1e-3  # of τ: where a family's solution is looked for once evidence has decided


@dataclass(frozen=True, eq=False)
class Problem:
    """What is asked: the same for every client of a batch."""

    head: Head
    relations: tuple[Relation, ...]
    family: Family | None
    scale: Scale | None
    tolerance: float
    parameters: Mapping[str, Tensor] = field(default_factory=dict)  # the model's, by name
    head_only: bool = False  # nothing but the gradient of the head's weight may be used

    @property
    def scale_unknown(self) -> bool:
        """Whether the share may be the gradient times any positive factor."""
        return self.scale == "unknown"


def solve(problem: Problem, factors: Factors, shares: Sequence[GradientShare]) -> list[Recovery]:
    """Recover N clients: those whose evidence decides by it, the others by the family."""
    if not shares:
        return []
    pseudo = PseudoLabels.of(problem.head, factors)
    verdict = weigh(problem.relations, shares, problem.head, factors)
    return review(_solve(problem, factors, pseudo, verdict), pseudo, verdict, problem.scale)


def _solve(
    problem: Problem, factors: Factors, pseudo: PseudoLabels, verdict: Verdict
) -> list[Recovery]:
    decided = verdict.decided.nonzero()[:, 0]
    open_ = (~verdict.decided).nonzero()[:, 0]
    answers: dict[int, Recovery] = {}
    for rows, attempt in ((decided, _by_evidence), (open_, _by_family)):
        if len(rows):
            mine, said, own = factors.take(rows), verdict.take(rows), pseudo.take(rows)
            solutions = replace(
                attempt(problem, own, said), relative=factors.relative,
                declared=problem.family is not None,
            )  # fmt: skip
            found = certify(solutions, mine, said, problem.tolerance)
            answers.update(zip(rows.tolist(), found, strict=True))
    if problem.scale_unknown and problem.family is None:
        # Outside the usual families the feature is still exact; the label lies on a segment.
        lost = [i for i in decided.tolist() if answers[i].status is not Status.UNIQUE]
        if lost:
            rows, anything = decided.new_tensor(lost), replace(problem, family=AnyLabel())
            wider = _solve(anything, factors.take(rows), pseudo.take(rows), verdict.take(rows))
            answers.update(zip(lost, wider, strict=True))
    return [answers[i] for i in range(len(factors.sigma))]


def _by_evidence(problem: Problem, pseudo: PseudoLabels, verdict: Verdict) -> Solutions:
    """τ is known; the family, if any, only has to pick the label."""
    tau, error = verdict.scalar, verdict.error
    if problem.scale_unknown:
        segment = Segment.at(pseudo, tau, error)
        family = problem.family or WIDEST
        return Solutions(segment, family, search(segment, family, segment.interval()), 1, tau)
    if problem.family is not None:
        margin = error / tau.abs() + AROUND
        everyone = torch.arange(len(tau), device=tau.device)
        near = Interval(everyone, tau.sign(), tau.abs() / (1 + margin), tau.abs() * (1 + margin))
        found = search(pseudo, problem.family, near)
        owner = found.client
        both = found.within(tau[owner] - SPARE * error[owner], tau[owner] + SPARE * error[owner])
        return Solutions(pseudo, problem.family, both, DECIDED)
    return Solutions(pseudo, AnyLabel(), _given(pseudo, verdict), DECIDED)


def _given(pseudo: PseudoLabels, verdict: Verdict) -> Minima:
    """Each client's τ, and every other that its evidence gives in contradiction to it."""
    rows = enumerate(zip(verdict.scalar.tolist(), verdict.error.tolist(), strict=True))
    flat = [(client, scalar, error) for client, (scalar, error) in rows]
    for client in range(len(flat)):
        others = (other for other in verdict.conflicts(client) if other.holds)
        flat += [(client, other.scalar, other.error) for other in others]
    table = torch.tensor(flat, dtype=pseudo.u.dtype, device=pseudo.u.device)
    owner, t, error = table[:, 0].long(), table[:, 1], table[:, 2]
    # Evidence that does not even tell the sign leaves the scalars of this one down to almost zero.
    near, far = t - error.minimum(t.abs() * (1 - NEAREST)) * t.sign(), t + error * t.sign()
    found = misfit(pseudo.take(owner), AnyLabel(), torch.stack([t, near, far], 1)).amin(-1)
    return Minima(owner, t, near.minimum(far), near.maximum(far), found)


def _by_family(problem: Problem, pseudo: PseudoLabels, _: Verdict) -> Solutions:
    """Only the head speaks: search all scalars."""
    family = problem.family or WIDEST
    if not problem.scale_unknown:
        return Solutions(pseudo, family, search(pseudo, family, pseudo.interval()), 1)
    rescaled = Rescaled(pseudo, family)
    return Solutions(rescaled, family, search(rescaled, family, rescaled.interval()), 2)
