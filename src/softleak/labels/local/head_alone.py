"""Labels where the head alone was trained on one sample, for several steps.

The update is exactly rank one, and the recursion of the logits is a curve in one scalar. Behind it
an update is also read as intervals: rounding moves a weight by a limited amount only.

The weights that a client sends are rounded, and at a small learning rate a continuum of labels fits
to within the usual size of that rounding. But each step rounds a weight by at most half a unit in
its last place, and that unit is smaller for small weights. The head's update is a product ``δ xᵀ``,
so every entry of ``x`` lies in C intervals at once, and every entry of ``δ`` in as many as the
feature has entries. Their common parts are several times narrower than the error of a singular
vector, which counts all entries alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.core.factors import Factors, factor
from softleak.core.families import AnyLabel, Family
from softleak.core.knowledge import Knowledge
from softleak.core.results import Recovery
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.core.update import SgdSteps, mean_of_head
from softleak.labels.certify import Solutions
from softleak.labels.curve import Curve, misfit, on_simplex, spread
from softleak.labels.evidence.combine import CombinedEvidence, combine
from softleak.labels.evidence.relation import HeadBias
from softleak.labels.local.recursion import RecursionCurve
from softleak.labels.pseudo import PseudoLabels
from softleak.labels.review import review
from softleak.labels.search import Minima, search, zoom
from softleak.labels.solve import DECIDED, WIDEST, solve_each


def trains_head_alone(subject: Subject, share: GradientShare) -> bool:
    """Return whether no parameter but the head's has moved, as far as the share tells."""
    head = subject.head
    own = (head.weight_name, head.bias_name)
    others = [n for n in share if n in subject.parameters and n not in own]
    return head.weight_name in share and not any(bool(share[n].any()) for n in others)


def trains_bias(subject: Subject, share: GradientShare) -> bool:
    """Return whether the head's bias has moved."""
    name = subject.head.bias_name
    return name in share and bool(share[name].any())


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
    some = factors.take(rows)
    found = _solve(subject, knowledge, kept, some, recipe)
    for place, i in enumerate(rows.tolist()):
        if some.balanced(place, found[place].scalar):
            answers[i] = found[place]
    return answers


def _solve(
    subject: Subject, knowledge: Knowledge, shares: Sequence[GradientShare], factors: Factors,
    recipe: SgdSteps,
) -> list[Recovery]:  # fmt: skip
    head = subject.head
    trained = all(trains_bias(subject, share) for share in shares)
    curve = RecursionCurve.of(head, factors, recipe, trained)
    relations = [HeadBias(head.bias_name)] if trained and not knowledge.head_only else []
    verdict = combine(relations, shares, head, factors)
    ordered = solve_each(head, knowledge, factors, curve, verdict, _by_bias, _by_family)
    updates = [True] * len(shares)
    return review(ordered, curve.pseudo, verdict, knowledge.scale, updates)


def _by_family(knowledge: Knowledge, curve: RecursionCurve, _: CombinedEvidence) -> Solutions:
    family = knowledge.family or WIDEST
    return Solutions(curve, family, search(curve, family, curve.interval()), 1)


def _by_bias(_: Knowledge, curve: RecursionCurve, verdict: CombinedEvidence) -> Solutions:
    """Return the solution at the scalar that the update of the head's bias gives."""
    t, error = verdict.scalar, verdict.error
    low, high = t - error, t + error
    points = torch.stack([t, low, high], 1)
    found = misfit(curve, AnyLabel(), points).amin(-1)
    everyone = torch.arange(len(t), device=t.device)
    return Solutions(curve, AnyLabel(), Minima(everyone, t, low, high, found), DECIDED)


# What finds the common parts of the intervals, and the label they mean.
ROUNDED_ROUNDS = 50  # times at most that each factor is found from the other
ROUNDED_SETTLED = 0.01  # of an interval's length: a move of the factor that ends the rounds
ROUNDED_ARITHMETIC = 4.0  # roundings of a gradient and its momentum in every step
ROUNDED_LEVELS = 5  # times that the bracket of scalars is cut


@dataclass(frozen=True, eq=False)
class RoundedUpdate:
    """Intervals (C, I), from ``low`` to ``high``, that hold the head's mean gradient."""

    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, subject: Subject, share: GradientShare, recipe: SgdSteps) -> RoundedUpdate | None:
        """Return the intervals of an update; None if the weights are not of the model's format."""
        name = subject.head.weight_name
        before = subject.parameters[name].detach()
        update = share[name].to(before.device).double()
        after, relative = before.double() - update, torch.finfo(before.dtype).eps
        if bool((after.to(before.dtype).double() != after).any()):
            return None
        largest = torch.maximum(before.double().abs(), after.abs())
        unit = torch.ldexp(torch.full_like(after, relative / 2), torch.frexp(largest).exponent)
        each = unit / 2 + ROUNDED_ARITHMETIC * relative * update.abs()
        error = recipe.steps * each / recipe.total
        gradient = mean_of_head(subject, share, recipe)[name].to(before.device)
        return cls(gradient - error, gradient + error)

    def factors(self, first: Factors) -> Factors | None:
        """Return the factors (1, …) in the middle of what all intervals allow.

        None if they have nothing in common: the update is then not a product, or its weights were
        rounded more often than it is said.
        """
        delta = first.u[0]
        for _ in range(ROUNDED_ROUNDS):
            before = delta
            x, x_slack = _middle(self.low / delta[:, None], self.high / delta[:, None], 0)
            delta, slack = _middle(self.low / x, self.high / x, 1)
            if bool(((delta - before).abs() <= ROUNDED_SETTLED * slack).all()):
                break
        if not bool((x_slack >= 0).all() and (slack >= 0).all()):
            return None
        size, length = delta.norm(), x.norm()
        return replace(
            first, u=(delta / size)[None], v=(x / length)[None], sigma=(size * length)[None]
        )


def _middle(one: Tensor, other: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return the middle of what intervals have in common, and its length; negative if nothing."""
    low, high = torch.minimum(one, other).amax(dim), torch.maximum(one, other).amin(dim)
    return (low + high) / 2, high - low


def by_rounding(
    subject: Subject, share: GradientShare, recipe: SgdSteps, answer: Recovery, family: Family
) -> Recovery:
    """Return the answer with the label that the intervals of the rounded weights mean.

    Its status and everything else that fits stay. It is returned as it is if the intervals have
    nothing in common.

    ``answer`` is AMBIGUOUS, with the label of the ``family`` searched that fits best so far.
    """
    best = next((one for one in answer.solutions if one.scalar == answer.scalar), None)
    update = RoundedUpdate.of(subject, share, recipe)
    if best is None or answer.label is None or answer.feature is None or update is None:
        return answer
    factors = update.factors(factor(subject.head, [mean_of_head(subject, share, recipe)]))
    if factors is None:
        return answer
    curve: Curve = PseudoLabels.of(subject.head, factors)
    if recipe.steps > 1:
        curve = RecursionCurve.of(subject.head, factors, recipe, trains_bias(subject, share))
    low, high = factors.sigma.new_tensor([[best.low], [best.high]])
    (_, t, _), _ = zoom(lambda t: spread(curve, family, t), low, high, ROUNDED_LEVELS, many=False)
    t = t[:, None]
    label = on_simplex(family.project(curve.labels(t)[0])[0, 0]).to(answer.label)
    return replace(
        answer,
        label=label,
        feature=(factors.v[0] * factors.sigma / t[0]).to(answer.feature),
        scalar=float(t),
        error=answer.error + float((label - answer.label).abs().sum()),
    )
