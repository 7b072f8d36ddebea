"""Solve one batch of single-sample shares by curve, search and certificate, and doubt the answer.

A certificate says that one label explains the numbers as they stand. Then they are doubted: is it
one sample at all, and is the share the gradient itself?
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from torch import Tensor

from softleak.core.factors import Factors
from softleak.core.families import (
    ANY_LABEL,
    KNOWN_FAMILIES,
    AnyLabel,
    Family,
    Mixed,
    OneHot,
    Smoothed,
    SmoothedMixed,
)
from softleak.core.head import Head
from softleak.core.knowledge import Knowledge
from softleak.core.results import Reading, Recovery, Status
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.labels.certify import FAMILY_NAMES, Doubt, Solutions, certify, with_note
from softleak.labels.curve import (
    ENTRIES_AT_ONCE,
    LARGEST,
    Curve,
    Interval,
    PseudoLabels,
    Rescaled,
    Segment,
    distance,
    misfit,
    on_simplex,
    other_factors_fit,
    root_mean_square,
)
from softleak.labels.evidence.probes import evidence_for
from softleak.labels.evidence.relation import Estimate, combine
from softleak.labels.search import SEARCH_FIT, Minima, search

NOT_STATED = (
    "nobody vouched that the share is the gradient of the plain loss itself, neither scaled nor "
    "weighted, which is assumed"
)
POSITIVE = "the factor of the share is unknown and assumed to be positive"
ONE_STEP = "if it is a difference of checkpoints, it is assumed to be one step"

READINGS_LEADING = 2  # entries at either end of u, and of p, that may be a label's own classes
READINGS_SLACK_ERRORS = 4.0  # errors: how far below zero a label's entry may be
READINGS_DISTINCT_ROUNDINGS = 64.0
READINGS_SAME_SCALE = 1e-3  # relative: scales this close to one are one
LEAST_DIVISOR = 1e-300


# How many entries of a label of a known family are free.
FREE = {OneHot(): 1, Smoothed(): 2, Mixed(2): 2, SmoothedMixed(2): 3}


def simplicity(family: object, classes: int) -> int:
    """Return how many equations a known family imposes on C entries that sum to one; 0 if none."""
    return classes - FREE[family] if family in KNOWN_FAMILIES else 0


def simpler_readings(
    pseudo: PseudoLabels, tau: Tensor, error: Tensor, simple: Sequence[int], positive: bool = True
) -> Iterator[Reading | None]:
    """Yield for each client a label on its line that meets more than its ``simple`` equations."""
    rows = max(ENTRIES_AT_ONCE // (42 * pseudo.u.shape[-1]), 1)
    for part in torch.split(torch.arange(len(tau), device=tau.device), rows):
        segment = Segment.at(pseudo.take(part), tau[part], error[part])
        s = _regressions(segment, tau[part].abs())
        s = s if positive else s.clamp_max(0.0)
        seen = _levels(segment, tau[part].abs())
        levels = [min(simple[i], level) for i, level in zip(part.tolist(), seen, strict=True)]
        found = _simplest(segment, s / tau[part].abs()[:, None], s, levels)
        for index, reading in zip(part.tolist(), found, strict=True):
            # The share is τ δ/|δ|: at s it is the gradient times |τ|/s.
            yield reading and replace(reading, scale=float(tau[index].abs()) / reading.scale)


def _levels(segment: Segment, size: Tensor) -> list[int]:
    """Return how many equations the labels at ``s = size`` (N,) satisfy, entry by entry."""
    y, _ = segment.labels(size[:, None])
    error = segment.errors(size[:, None], y)
    found = [0] * len(size)
    for family in reversed(KNOWN_FAMILIES):
        fits = root_mean_square(*distance(family, y, error))[:, 0] <= SEARCH_FIT
        level = simplicity(family, y.shape[-1])
        found = [max(level, one) if fit else one for one, fit in zip(found, fits, strict=True)]
    return found


def _regressions(segment: Segment, size: Tensor) -> Tensor:
    """Return slopes (N, S) of ``p`` against ``u`` without the entries of one or two classes."""
    p, u = segment.p, segment.u
    ends = min(READINGS_LEADING, u.shape[-1])
    # One or two entries that may be a label's classes: (N, M, C) zero there, one elsewhere.
    chosen = torch.cat([x.topk(ends).indices for x in (u, -u, p)], 1)
    places = range(chosen.shape[1])
    groups = [*zip(places, places, strict=True), *combinations(places, 2)]
    index = chosen[:, torch.tensor(groups, device=u.device)]  # (N, M, 2)
    kept = u.new_ones(*index.shape[:2], u.shape[-1]).scatter(2, index, 0.0)
    p, u = p[:, None], u[:, None]
    error = segment.errors(size[:, None], p - size[:, None, None] * u)
    weight = (error.amin(-1, keepdim=True) / error.clamp_min(LEAST_DIVISOR)).square() * kept
    through_zero = (weight * p * u).sum(-1) / (weight * u * u).sum(-1).clamp_min(LEAST_DIVISOR)
    total = weight.sum(-1, keepdim=True).clamp_min(LEAST_DIVISOR)
    p, u = (x - (weight * x).sum(-1, keepdim=True) / total for x in (p, u))
    level = (weight * p * u).sum(-1) / (weight * u * u).sum(-1).clamp_min(LEAST_DIVISOR)
    return torch.cat([through_zero, level], 1).nan_to_num(0.0, 0.0, 0.0)


def _simplest(
    segment: Segment, ratio: Tensor, s: Tensor, levels: Sequence[int]
) -> list[Reading | None]:
    """Return the simplest family that fits at one of the slopes ``s`` (N, S), if simpler."""
    classes = segment.p.shape[-1]
    y, _ = segment.labels(s)
    error = segment.errors(s.abs(), y)
    possible = (y >= -READINGS_SLACK_ERRORS * error).all(-1) & (s.abs() <= LARGEST)
    possible &= s.abs() > READINGS_DISTINCT_ROUNDINGS * segment.relative
    # Another scale, not the same with another rounding.
    unsure = READINGS_SLACK_ERRORS * segment.error.sum(-1, keepdim=True)
    unsure = unsure / (s / ratio).abs().clamp_min(LEAST_DIVISOR)
    possible &= (ratio - 1).abs() > READINGS_SAME_SCALE + unsure
    found: list[Reading | None] = [None] * len(s)
    for family in KNOWN_FAMILIES:
        level = simplicity(family, classes)
        misfit = root_mean_square(*distance(family, y, error)).masked_fill(~possible, torch.inf)
        fits = misfit <= SEARCH_FIT
        # Of several the plainest: the share itself with the other sign before any other factor.
        plain = ratio.abs().clamp_min(LEAST_DIVISOR).log().abs().masked_fill(~fits, torch.inf)
        at = plain.argmin(1)
        for client, index in enumerate(at.tolist()):
            if found[client] is None and bool(fits[client, index]) and level > levels[client]:
                label = on_simplex(family.project(y[client, index]))
                found[client] = Reading(label, float(s[client, index]), family)
    return found


TEMPERATURES_HOTTEST = 32.0  # the largest temperature looked for, and the inverse of the smallest
TEMPERATURES_FEWEST_CLASSES = 5  # classes: with fewer, some temperature fits every label
WIDEST: Family = SmoothedMixed(2)  # one-hot, smoothed and mixed labels are all among these


@dataclass(frozen=True, eq=False)
class Tempered:
    """``y(T)`` of N clients whose ``τ`` (N,) is known to within ``error`` (N,)."""

    pseudo: PseudoLabels
    tau: Tensor
    error: Tensor

    def probabilities(self, t: Tensor) -> Tensor:
        return torch.softmax(self.logits()[:, None] / t[..., None], dim=-1)

    def labels(self, t: Tensor) -> tuple[Tensor, Tensor]:
        size = t * self.tau.abs()[:, None]
        u = self.pseudo.u * self.tau.sign()[:, None]
        return self.probabilities(t) - size[..., None] * u[:, None], size

    def errors(self, t: Tensor, y: Tensor) -> Tensor:
        p = self.probabilities(t)
        shift = self.pseudo.a.abs().amax(-1) * self.error / self.tau.square()
        size = (t * self.error[:, None])[..., None] * self.pseudo.u[:, None].abs()
        moved = self.pseudo.rounding(self.tau[:, None].expand_as(t), p, y)
        moved = moved + p * (1 - p) * shift[:, None, None]
        return moved / t.clamp_max(1.0)[..., None] + size  # the logits are divided by T

    @property
    def points_at_once(self) -> int:
        return self.pseudo.points_at_once

    def logits(self) -> Tensor:
        return self.pseudo.a / self.tau[:, None] + self.pseudo.b

    def take(self, rows: Tensor) -> Tempered:
        return Tempered(self.pseudo.take(rows), self.tau[rows], self.error[rows])

    def interval(self) -> Interval:
        """Return the temperatures above and below one."""
        ends = torch.full_like(self.tau, TEMPERATURES_HOTTEST)
        return Interval.positive(1 / ends, ends)


def tempered_readings(pseudo: PseudoLabels, tau: Tensor, error: Tensor) -> list[Reading | None]:
    """Return for each of N clients a simple label at another temperature of the loss, if any."""
    found: list[Reading | None] = [None] * len(tau)
    if pseudo.u.shape[-1] < TEMPERATURES_FEWEST_CLASSES:
        return found
    curve = Tempered(pseudo, tau, error)
    minima = search(curve, WIDEST, curve.interval())
    minima = minima.take(minima.fits.nonzero()[:, 0])
    some, at = curve.take(minima.client), minima.scalar[:, None]
    y, _ = some.labels(at)
    errors = some.errors(at, y)
    possible = (y >= -READINGS_SLACK_ERRORS * errors).all(-1)[:, 0]
    possible &= (minima.scalar - 1).abs() > READINGS_SAME_SCALE
    for row in possible.nonzero()[:, 0].tolist():
        label, temperature = y[row, 0], float(minima.scalar[row])
        slack = READINGS_SLACK_ERRORS * float(errors[row].sum())
        near = (f for f in KNOWN_FAMILIES if float((label - f.project(label)).abs().sum()) <= slack)
        family = next(near, WIDEST)
        reading = Reading(on_simplex(family.project(label)), 1 / temperature, family, temperature)
        found[int(minima.client[row])] = reading
    return found


REVIEW_MORE_THAN_ONE_STEP = 1.01
REVIEW_NEAR_PREDICTION = 0.02
REVIEW_AT_PREDICTION = 1e-3  # L2: as close as this, only a one-hot label is no such mark


def review(
    found: Sequence[Recovery], pseudo: PseudoLabels, verdict: Estimate, scale: str | None,
    updates: Sequence[bool],
) -> list[Recovery]:  # fmt: skip
    """Return the recoveries of N clients, UNIQUE only where the doubts have an answer as well."""
    answers = [_of_two_classes(one, pseudo.u.shape[-1]) for one in found]
    if scale == "known":
        return answers
    decided = verdict.decided.tolist()
    asked = [
        i for i, one in enumerate(answers)
        if one.complete  # or no label was found although the evidence gives a scalar
        or (one.status is Status.NO_SOLUTION and decided[i] and not verdict.conflicts(i))
    ]  # fmt: skip
    if not asked:
        return answers
    rows = torch.tensor(asked, device=pseudo.u.device)
    some, tau, error = pseudo.take(rows), verdict.scalar[rows].clone(), verdict.error[rows].clone()
    for index, i in enumerate(asked):
        if not decided[i]:
            best = answers[i].solutions[0]
            tau[index] = best.scalar
            error[index] = max(best.high - best.scalar, best.scalar - best.low)
    readings = _other_readings([answers[i] for i in asked], some, tau, error, scale)
    segments = Segment.at(some, tau, error)
    for row, (i, reading) in enumerate(zip(asked, readings, strict=True)):
        mine = segments.take(torch.tensor([row], device=rows.device))
        open_ = scale is None and reading is None and _strength_open(answers[i], mine)
        answers[i] = _with_reading(answers[i], reading, scale, decided[i], updates[i])
        if open_:
            answers[i] = _of_open_factor(answers[i], Doubt.STRENGTH)
    return answers


def _strength_open(answer: Recovery, segment: Segment) -> bool:
    """Return whether a proved label has others of the same simple family at other factors."""
    best = segment.p.new_tensor([abs(answer.scalar or 1.0)])
    kinds = [one for one in KNOWN_FAMILIES if one == answer.family and one != OneHot()]
    proved = answer.status is Status.UNIQUE
    return proved and any(other_factors_fit(segment, kind, best, SEARCH_FIT) for kind in kinds)


def _other_readings(
    answers: Sequence[Recovery], pseudo: PseudoLabels, tau: Tensor, error: Tensor,
    scale: str | None,
) -> list[Reading | None]:  # fmt: skip
    """Return for each of N answers a simpler label of the same numbers, if there is one."""
    levels = [simplicity(one.family, pseudo.u.shape[-1]) for one in answers]
    readings = list(simpler_readings(pseudo, tau, error, levels, scale is None))
    arbitrary = [
        i for i, one in enumerate(answers)
        if readings[i] is None and isinstance(one.family, AnyLabel)
    ]  # fmt: skip
    if scale is None and arbitrary:
        some = torch.tensor(arbitrary, device=pseudo.u.device)
        warmer = tempered_readings(pseudo.take(some), tau[some], error[some])
        for i, reading in zip(arbitrary, warmer, strict=True):
            readings[i] = reading
    return readings


def _of_two_classes(answer: Recovery, classes: int) -> Recovery:
    """Doubt two classes, whose batches have gradients of rank one, unless another layer speaks."""
    if classes > 2 or answer.status is not Status.UNIQUE:
        return answer
    witnesses = [piece.parameter for piece in answer.evidence if piece.single]
    if not witnesses:
        return doubted(answer, Doubt.TWO_CLASSES.value)
    return with_note(answer, f"that it is one sample rests on the gradient of {witnesses[0]}")


def _with_reading(
    answer: Recovery, reading: Reading | None, scale: str | None, decided: bool, update: bool
) -> Recovery:
    if reading is not None:
        words = _explained(reading, answer.label is not None)
        both = replace(doubted(answer, words), readings=(reading,))
        if answer.label is not None:
            return both
        return replace(both, label=reading.label, scale=reading.scale)
    arbitrary = isinstance(answer.family, AnyLabel)
    if answer.status is Status.NO_SOLUTION:
        return answer
    if scale == "unknown" and update and answer.scale > REVIEW_MORE_THAN_ONE_STEP:
        return doubted(answer, Doubt.STEPS.value)
    if scale == "unknown":
        return with_note(answer, f"{POSITIVE}; {ONE_STEP}" if update else POSITIVE)
    distance = abs(answer.scalar or 0.0)
    near = REVIEW_NEAR_PREDICTION if arbitrary else REVIEW_AT_PREDICTION
    if distance < near and not isinstance(answer.family, OneHot):
        return _of_open_factor(answer, Doubt.SCALED_DOWN)
    if arbitrary and answer.status is Status.UNIQUE:
        return _of_open_factor(answer, Doubt.ARBITRARY)
    # Numbers too coarse to give one label do not rule out a simpler one at another scale either.
    simplest = answer.status is Status.UNIQUE or isinstance(answer.family, OneHot)
    complete = answer.complete and (simplest or not decided)
    return with_note(replace(answer, complete=complete), NOT_STATED)


def _explained(reading: Reading, otherwise: bool) -> str:
    """Return both readings of a share in words; ``otherwise``: scale one has a label too."""
    what = f"a label that is {FAMILY_NAMES[reading.family]}, of class {int(reading.label.argmax())}"
    how = "an averaged or weighted loss, clipping or another learning rate"
    if reading.scale < 0:
        how = "a difference of weights (after − before), not a gradient"
    label = "a label of no simple kind" if otherwise else "no label at all"
    first = f"taken as the gradient itself, the share means {label}"
    if reading.temperature != 1:
        return (
            f"{first}; with a loss that divides the logits by a temperature of "
            f'{reading.temperature:.4g} it means {what}. If the loss has none, say scale="known"'
        )
    return (
        f"{first}; multiplied by {reading.scale:.4g} ({how}) it means {what}. If you know which, "
        'say so by scale="known", scale="unknown" or the kind of the share'
    )


def doubted(answer: Recovery, words: str) -> Recovery:
    """Return an answer that is not proved after all, for the reason in these words."""
    return replace(answer, status=Status.AMBIGUOUS, reason=words, complete=False)


def _of_open_factor(answer: Recovery, doubt: Doubt) -> Recovery:
    """Doubt a label that is another one at another factor: nothing bounds how far off it is."""
    return replace(doubted(answer, doubt.value), error=math.inf)


EVIDENCE_ERRORS = 4.0  # times the error of evidence: how far a family's solution may be from it
EVIDENCE_NEAREST = 1e-3  # of τ: how close to zero an interval of evidence may come
EVIDENCE_AROUND = 1e-3  # of τ: where a solution is looked for once evidence has decided

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
