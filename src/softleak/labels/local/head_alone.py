"""Recover labels where the head alone was trained on one sample, for several steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from softleak.core.factors import Factors, factor
from softleak.core.families import AnyLabel
from softleak.core.knowledge import Knowledge
from softleak.core.results import Recovery
from softleak.core.sgd_steps import SgdSteps, mean_of_head
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.labels.certify import Solutions, certify
from softleak.labels.curve import misfit
from softleak.labels.evidence.combine import CombinedEvidence, combine
from softleak.labels.evidence.relation import HeadBias
from softleak.labels.local.recursion import RecursionCurve
from softleak.labels.pseudo import PseudoLabels
from softleak.labels.review import review
from softleak.labels.search import Minima, search
from softleak.labels.solve import DECIDED, WIDEST


def trains_head_alone(subject: Subject, share: GradientShare) -> bool:
    """Return whether no parameter but the head's has moved, as far as the share tells."""
    head = subject.head
    own = (head.weight_name, head.bias_name)
    others = [n for n in share if n in subject.parameters and n not in own]
    return head.weight_name in share and not any(bool(share[n].any()) for n in others)


def recover_head_alone(
    subject: Subject, knowledge: Knowledge, shares: Sequence[GradientShare], recipe: SgdSteps
) -> list[Recovery | None]:
    """Recover N clients that took the steps of one recipe, on one sample each.

    Returns:
        A recovery for each share; None where the update, less its weight decay, is not a product
        as that of one sample is.
    """
    head = subject.head
    ready = [mean_of_head(subject, share, recipe) for share in shares]
    factors = factor(head, ready)
    rows = (factors.rank_one & ~factors.zero).nonzero()[:, 0]
    answers: list[Recovery | None] = [None] * len(shares)
    if not len(rows):
        return answers
    kept = [ready[i] for i in rows.tolist()]
    found = _solve(subject, knowledge, kept, factors.take(rows), recipe)
    some = factors.take(rows)
    for place, i in enumerate(rows.tolist()):
        if some.balanced(place, found[place].scalar):
            answers[i] = found[place]
    return answers


def _solve(
    subject: Subject, knowledge: Knowledge, shares: Sequence[GradientShare], factors: Factors,
    recipe: SgdSteps,
) -> list[Recovery]:  # fmt: skip
    head = subject.head
    pseudo = PseudoLabels.of(head, factors)
    trained = all(head.bias_name in s and bool(s[head.bias_name].any()) for s in shares)
    curve = RecursionCurve(pseudo, factors.sigma.square(), recipe, trained)
    relations = [HeadBias(head.bias_name)] if trained and not knowledge.head_only else []
    verdict = combine(relations, shares, head, factors)
    answers: dict[int, Recovery] = {}
    decided, open_ = verdict.decided.nonzero()[:, 0], (~verdict.decided).nonzero()[:, 0]
    for rows in (decided, open_):
        if not len(rows):
            continue
        mine, said = curve.take(rows), verdict.take(rows)
        solutions = _by_bias(mine, said) if rows is decided else _by_family(knowledge, mine)
        solutions = replace(
            solutions, relative=factors.relative, declared=knowledge.family is not None,
            normalised=head.normalised,
        )  # fmt: skip
        found = certify(solutions, factors.take(rows), said, knowledge.tolerance)
        answers.update(zip(rows.tolist(), found, strict=True))
    ordered = [answers[i] for i in range(len(shares))]
    updates = [True] * len(shares)
    return review(ordered, pseudo, verdict, knowledge.scale, updates)


def _by_family(knowledge: Knowledge, curve: RecursionCurve) -> Solutions:
    family = knowledge.family or WIDEST
    return Solutions(curve, family, search(curve, family, curve.interval()), 1)


def _by_bias(curve: RecursionCurve, verdict: CombinedEvidence) -> Solutions:
    """Return the solution at the scalar that the update of the head's bias gives."""
    t, error = verdict.scalar, verdict.error
    low, high = t - error, t + error
    points = torch.stack([t, low, high], 1)
    found = misfit(curve, AnyLabel(), points).amin(-1)
    everyone = torch.arange(len(t), device=t.device)
    return Solutions(curve, AnyLabel(), Minima(everyone, t, low, high, found), DECIDED)
