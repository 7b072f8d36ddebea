"""The head alone is trained on one sample: K steps are again a curve in one scalar.

The feature ``x`` stays as it is, so the update, less its weight decay, is exactly ``A xᵀ``, and the
logits obey a recursion in C numbers (docs/local-training.md):

    z_k = α_k z_0 − (‖x‖² + β) A_k,    δ_k = softmax(z_k) − y,    A_{k+1} = A_k + lr δ_k …,

with ``β = 1`` if the head's bias is trained as well. The last ``A`` is ``κ t u`` with ``u`` known,
and ``x = (σ/t) v``: for every scalar ``t`` the label solves C equations, by Newton's method.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.core.client import SgdSteps, mean_of_head
from softleak.core.factors import Factors, factor
from softleak.core.families import AnyLabel, Family
from softleak.core.head import Head
from softleak.core.knowledge import Knowledge
from softleak.core.results import Recovery, Status
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.labels.certify import Doubt, Solutions
from softleak.labels.curve import (
    ENTRIES_AT_ONCE,
    Curve,
    Interval,
    PseudoLabels,
    distance,
    misfit,
    on_simplex,
)
from softleak.labels.evidence.relation import Estimate, HeadBias, combine
from softleak.labels.search import Minima, zoom
from softleak.labels.solve import DECIDED, WIDEST, doubted, review, searched, solve_each

LABEL_EQUATIONS_ITERATIONS = 12  # Newton steps; three to five are usual
LABEL_EQUATIONS_SOLVED = 1e-7  # L1: a Newton step after which the next would be rounding
LABEL_EQUATIONS_LONGEST = 4.0  # L1: the largest Newton step, labels being at most 2 apart
LABEL_EQUATIONS_OUTSIDE = 1e3  # the entries of a label that stands for no solution
LABEL_EQUATIONS_STRIDE = 8  # of this number of scalars in a row at least, one is solved first
LABEL_EQUATIONS_APART = 1 / 8  # of |t|: the distance of scalars that are solved first
LABEL_EQUATIONS_FEWEST = 8  # scalars in a row below which every one is solved by itself
LABEL_EQUATIONS_ENTRIES = 1 << 16  # of derivatives held at once, so that they stay in the cache


def newton(curve: RecursionCurve, row: Tensor, t: Tensor, y: Tensor) -> Tensor:
    """Return the labels (K, C) of clients ``row`` at scalars (K,), from labels near or not."""
    size = LABEL_EQUATIONS_ENTRIES // y.shape[-1] ** 2 + 1
    everyone = torch.arange(len(t), device=t.device)
    parts = [_newton_of(curve.take(row[i]), t[i], y[i]) for i in torch.split(everyone, size)]
    return torch.cat(parts)


def _newton_of(curve: RecursionCurve, t: Tensor, y: Tensor) -> Tensor:
    """Return the labels (N, C) at one scalar (N,) each, from labels that are near or not."""
    found = torch.full_like(y, LABEL_EQUATIONS_OUTSIDE)  # no solution: near no family
    found[:, :-1:2] *= -1
    left = torch.arange(len(y), device=t.device)
    for _ in range(LABEL_EQUATIONS_ITERATIONS):
        run = curve.run(t, y)
        step, singular = torch.linalg.solve_ex(run.slope, run.mean - t[:, None] * curve.pseudo.u)
        length = step.abs().sum(-1, keepdim=True)
        y = y - step * (LABEL_EQUATIONS_LONGEST / length.clamp_min(LABEL_EQUATIONS_LONGEST))
        done = length[:, 0] <= LABEL_EQUATIONS_SOLVED
        found[left[done]] = y[done]
        keep = (~done & length[:, 0].isfinite() & (singular == 0)).nonzero()[:, 0]
        if not len(keep):
            break
        if len(keep) < len(left):
            curve, t, y, left = curve.take(keep), t[keep], y[keep], left[keep]
    return found


def solve_along(curve: RecursionCurve, t: Tensor, start: Tensor) -> Tensor:
    """Return the labels (N, S, C) at the scalars ``t`` (N, S), ordered in every row."""
    count, classes = t.shape[1], start.shape[-1]
    if not t.numel():
        return start
    everyone = torch.arange(len(t), device=t.device)
    begin = start
    if count >= 2 * LABEL_EQUATIONS_FEWEST:
        far = float((t.abs().amax(1) / t.abs().amin(1)).max().log())
        gaps = min(math.ceil(far / LABEL_EQUATIONS_APART), (count - 1) // LABEL_EQUATIONS_STRIDE)
        knots = torch.linspace(0, count - 1, gaps + 2, device=t.device).round().long()
        row = everyone.repeat_interleave(len(knots))
        at, first = t[:, knots], start[:, knots]
        known = newton(curve, row, at.reshape(-1), first.reshape(-1, classes)).view(first.shape)
        line, near = _between(at, known, t)
        begin = torch.where(near[..., None], line, start)
    row = everyone.repeat_interleave(count)
    return newton(curve, row, t.reshape(-1), begin.reshape(-1, classes)).view(start.shape)


def _between(known_t: Tensor, known: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Return labels (N, S, C) of scalars (N, S) on the lines between those that are known.

    These are ``known`` (N, K, C) at ``known_t`` (N, K), ordered in every row. Return as well
    whether both ends of a line are solved (N, S).
    """
    way = (known_t[:, -1:] - known_t[:, :1]).sign()  # rows may descend
    left = torch.searchsorted((known_t * way).contiguous(), (t * way).contiguous(), right=True) - 1
    left = left.clamp(0, known_t.shape[1] - 2)
    start, end = known_t.gather(1, left), known_t.gather(1, left + 1)
    part = ((t - start) / torch.where(end == start, 1.0, end - start))[..., None]
    wide = left[..., None].expand(-1, -1, known.shape[-1])
    line = torch.lerp(known.gather(1, wide), known.gather(1, wide + 1), part)
    inside = known.amax(-1) < LABEL_EQUATIONS_OUTSIDE
    return line, inside.gather(1, left) & inside.gather(1, left + 1)


@dataclass(frozen=True, eq=False)
class Run:
    """One run of the recursion: where it ends, how that depends on y, and what p did."""

    mean: Tensor  # A/κ (…, C)
    slope: Tensor  # its derivative by the label (…, C, C)
    p_most: Tensor  # the largest of every step (…, C)
    p_curved: Tensor  # the largest p (1 − p) of every step (…, C)


@dataclass(frozen=True, eq=False)
class RecursionCurve:
    """Ŷ(t) of N clients after several steps of the head."""

    pseudo: PseudoLabels  # the curves of the mean gradients, read as one step
    squared: Tensor  # (N,) σ², so that ``‖x‖² = σ²/t²``
    recipe: SgdSteps  # the steps
    bias_trained: bool  # whether the head's bias takes part

    @classmethod
    def of(
        cls, head: Head, factors: Factors, recipe: SgdSteps, bias_trained: bool
    ) -> RecursionCurve:
        """Return the curves behind a batch of head updates, of which these are the factors."""
        pseudo = PseudoLabels.of(head, factors)
        return cls(pseudo, factors.sigma.square(), recipe, bias_trained)

    def labels(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return solve_along(self, t, self.pseudo.labels(t)[0]), t.abs()

    def errors(self, t: Tensor, y: Tensor) -> Tensor:
        """Return what rounding of the update and of every step leaves in the label."""
        each = max(t[:1].numel() * y.shape[-1] ** 2, 1)
        everyone, found = torch.arange(len(t), device=t.device), []
        for some in torch.split(everyone, max(ENTRIES_AT_ONCE // each, 1)):
            row, at, label = some.repeat_interleave(t.shape[1]), t[some], y[some]
            outside = (label.amax(-1) >= LABEL_EQUATIONS_OUTSIDE)[..., None]
            inside = torch.where(outside, 1 / y.shape[-1], label)
            run = self.take(row).run(at.reshape(-1), inside.reshape(-1, y.shape[-1]))
            back = torch.linalg.inv_ex(run.slope).inverse.abs().nan_to_num(torch.inf)
            mine = self.pseudo.take_each(some)
            delta = (at[..., None] * mine.u[:, None]).abs()
            most, curved = run.p_most.reshape(label.shape), run.p_curved.reshape(label.shape)
            own = mine.rounding_of(at, delta, most, curved)
            carried = (back.reshape(*label.shape, y.shape[-1]) @ own[..., None])[..., 0]
            found.append(carried.masked_fill(outside, self.pseudo.relative))
        return torch.cat(found)

    @property
    def points_at_once(self) -> int:
        # Labels are found along all of a bracket at once, so it is not cut into small pieces.
        return max(ENTRIES_AT_ONCE // self.pseudo.u.shape[-1], 1)

    def logits(self) -> Tensor:
        return self.pseudo.logits()

    def take(self, rows: Tensor) -> RecursionCurve:
        return replace(self, pseudo=self.pseudo.take_each(rows), squared=self.squared[rows])

    def interval(self) -> Interval:
        """Return the scalars of both signs to search: those at which the steps are stable.

        The loss curves by at most ``(‖x‖² + β)/2`` along the head's output. SGD is stable while
        the rate times that is below ``2 (1 + momentum)``; a feature so long that the client's own
        training would not be, means no label that anyone could hold for the client's.
        """
        where = self.pseudo.interval()
        if self.recipe.steps == 1:
            return where
        longest = 4 * (1 + self.recipe.momentum) / self.recipe.lr
        shortest = (self.squared / longest).sqrt()[where.client]
        smallest = where.smallest.maximum(shortest).minimum(where.largest / 2)
        return replace(where, smallest=smallest)

    def run(self, t: Tensor, y: Tensor) -> Run:
        """Return the mean of ``p − y`` (N, C) at one scalar (N,) and one label (N, C) each.

        With it come its derivative by the label, and what p did on the way.
        """
        steps = self._predictions(t, y)
        length = self.squared / t.square() + float(self.bias_trained)
        # The derivative of A by the label, (C, C, N): over long last dimensions it is fast.
        turned, lag = y.new_zeros(y.shape[-1], *y.T.shape), None
        for k, p in enumerate(steps):
            # The derivative of p by the label: p ⊙ (dz − p·dz), with dz = −length dA.
            slope = turned * (-length * p)[:, None]
            slope.addcmul_(p[:, None], slope.sum(0), value=-1)
            slope.diagonal().sub_(1)
            lag = self.recipe.at(k).step_in_place(turned, lag, slope)
        every = torch.stack(steps)
        most, curved = every.amax(0).T, (every * (1 - every)).amax(0).T
        ended = turned.permute(2, 0, 1) / self.recipe.total
        return Run(self._sum(steps).T - y, ended.contiguous(), most, curved)

    def _predictions(self, t: Tensor, y: Tensor) -> list[Tensor]:
        """Return softmax(z_k) (C, N) before every step, at a scalar (N,) and label (N, C) each."""
        length = self.squared / t.square() + float(self.bias_trained)
        product, bias = (self.pseudo.a.T / t).contiguous(), self.pseudo.b[:, None]
        y = y.T.contiguous()
        moved, memory = torch.zeros_like(y), None
        found: list[Tensor] = []
        for k, kept in enumerate(self.recipe.kept[:-1]):
            base = kept * (product + bias) if self.bias_trained else kept * product + bias
            found.append(torch.softmax(base.addcmul_(length, moved, value=-1), 0))
            memory = self.recipe.at(k).step_in_place(moved, memory, found[-1] - y)
        return found

    def _sum(self, steps: list[Tensor]) -> Tensor:
        """Return the mean of what every step has, with the weights that the update gives them."""
        total = self.recipe.total
        weighed = zip(steps, self.recipe.weights, strict=True)
        return torch.stack([step * (weight / total) for step, weight in weighed]).sum(0)


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
    """Recover N clients that took these steps on one sample each; None for any other update."""
    head = subject.head
    ready = [mean_of_head(subject, share, recipe) for share in shares]
    factors = factor(head, ready)
    rows = (factors.rank_one & ~factors.zero).nonzero()[:, 0]
    answers: list[Recovery | None] = [None] * len(shares)
    if not len(rows):
        return answers
    kept, some = [ready[i] for i in rows.tolist()], factors.take(rows)
    trained = all(trains_bias(subject, share) for share in kept)
    curve = RecursionCurve.of(head, some, recipe, trained)
    relations = [HeadBias(head.bias_name)] if trained and not knowledge.head_only else []
    verdict = combine(relations, kept, head, some)
    family = knowledge.family or WIDEST

    def by_bias(few: Tensor, said: Estimate) -> Solutions:
        """Return the solution at the scalar that the update of the head's bias gives."""
        own, t = curve.take(few), said.scalar
        low, high = t - said.error, t + said.error
        far = misfit(own, AnyLabel(), torch.stack([t, low, high], 1)).amin(-1)
        everyone = torch.arange(len(t), device=t.device)
        return Solutions(own, AnyLabel(), Minima(everyone, t, low, high, far), DECIDED)

    found = solve_each(
        head, knowledge, some, verdict, by_bias, lambda few, _: searched(curve.take(few), family)
    )
    found = review(found, curve.pseudo, verdict, knowledge.scale, [True] * len(kept))
    for place, i in enumerate(rows.tolist()):
        if some.balanced(place, found[place].scalar):
            own = curve.take(rows.new_tensor([place]))
            answers[i] = allow_for_schedules(own, family, knowledge, found[place])
    return answers


ROUNDED_ROUNDS = 50  # times at most that each factor is found from the other
ROUNDED_SETTLED = 0.01  # of an interval's length: a move of the factor that ends the rounds
ROUNDED_ARITHMETIC = 4.0  # roundings of a gradient and its momentum in every step
ROUNDED_LEVELS = 5  # times that the bracket of scalars is cut


@dataclass(frozen=True, eq=False)
class RoundedUpdate:
    """Intervals (C, I), from ``low`` to ``high``, that hold the head's mean gradient.

    The weights that a client sends are rounded, and at a small learning rate a continuum of labels
    fits to within the usual size of that rounding. But each step rounds a weight by at most half a
    unit in its last place, and that unit is smaller for small weights. The head's update is a
    product ``δ xᵀ``, so every entry of ``x`` lies in C intervals at once, and every entry of ``δ``
    in as many as the feature has entries. Their common parts are several times narrower than the
    error of a singular vector, which counts all entries alike.
    """

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
        """Return the factors (1, …) in the middle of all intervals, if these have a common part."""
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
        u, v, sigma = (delta / size)[None], (x / length)[None], (size * length)[None]
        return replace(first, u=u, v=v, sigma=sigma)


def _middle(one: Tensor, other: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return the middle of what intervals have in common, and its length; negative if nothing."""
    low, high = torch.minimum(one, other).amax(dim), torch.maximum(one, other).amin(dim)
    return (low + high) / 2, high - low


def by_rounding(
    subject: Subject, share: GradientShare, recipe: SgdSteps, answer: Recovery, family: Family
) -> Recovery:
    """Return the answer with the label that the intervals of the rounded weights mean."""
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
    (_, t, _), _ = zoom(curve, family, low, high, ROUNDED_LEVELS, many=False)
    t = t[:, None]
    label = on_simplex(family.project(curve.labels(t)[0])[0, 0]).to(answer.label)
    return replace(
        answer, label=label, feature=(factors.v[0] * factors.sigma / t[0]).to(answer.feature),
        scalar=float(t), error=answer.error + float((label - answer.label).abs().sum()),
    )  # fmt: skip


# Of the rate: how far it is changed to see what moves. Small and large changes need not agree, as
# what a change does nearly cancels.
SCHEDULE_CHANGES = (1e-3, 1e-2, 0.1, -0.1, 0.4, -0.4)
SCHEDULE_STEP = 1e-3  # relative: how far the scalar is moved
SCHEDULE_MISFIT = 4.0  # errors of an equation that may be a schedule's: twice what fits, each way
SCHEDULE_DEGREES = 3  # of the polynomials in the number of the step that rates may follow


def allow_for_schedules(
    curve: RecursionCurve, family: Family, knowledge: Knowledge, answer: Recovery
) -> Recovery:
    """Return the answer for one client, UNIQUE only if no change of its rate moves it far.

    A client states one rate. With a schedule of the same mean, the update is that of another label,
    and the equations of the label's family test the schedule only as sharply as they tell the
    change of the predictions from that of the scalar.
    """
    simple = not isinstance(family, AnyLabel) and not isinstance(answer.family, AnyLabel)
    known = answer.status is Status.UNIQUE and answer.scalar is not None
    if curve.recipe.steps == 1 or not simple or not known:
        return answer
    t = torch.tensor([[answer.scalar]], dtype=torch.double)
    moved = [_moved(curve, family, t, change) for change in SCHEDULE_CHANGES]
    error = max(answer.error, *(one for one, _ in moved))
    of_scalar = max(answer.feature_error, *(one for _, one in moved))
    wider = replace(answer, error=error, feature_error=of_scalar)
    if wider.error <= knowledge.tolerance:
        return wider
    return replace(doubted(wider, Doubt.CLIENT_OPEN.value), complete=answer.complete)


def _moved(curve: RecursionCurve, family: Family, t: Tensor, change: float) -> tuple[float, float]:
    """Return how far schedules of the rate move the label in L1, and ``log t`` of ``t`` (1, 1).

    Everything is taken for linear, with the slopes of a ``change`` of the rate.
    """
    recipe, h = curve.recipe, SCHEDULE_STEP
    along = torch.linspace(-1, 1, recipe.steps, dtype=torch.double)
    powers = [along**k for k in range(min(SCHEDULE_DEGREES, recipe.steps - 1) + 1)]
    basis: Tensor = torch.linalg.qr(torch.stack(powers, 1)).Q[:, 1:].T
    schedules = 1 + change * basis / basis.abs().amax(1, keepdim=True)
    others = [replace(curve, recipe=replace(recipe, rates=tuple(s.tolist()))) for s in schedules]
    y = curve.labels(t)[0]
    rest, error = distance(family, y, curve.errors(t, y))
    moved = torch.cat([*(one.labels(t)[0] for one in others), curve.labels(t * (1 + h))[0]])
    by = torch.tensor([[change]] * len(others) + [[h]], dtype=torch.double)
    labels = (family.project(moved) - family.project(y))[:, 0] / by  # (S, C)
    rows = ((distance(family, moved, error)[0] - rest) / error)[:, 0] / by
    size = SCHEDULE_MISFIT * y.shape[-1] ** 0.5
    limits = size * torch.eye(len(rows), dtype=rows.dtype, device=rows.device)[:-1]
    covariance = torch.linalg.pinv(rows @ rows.T + limits.T @ limits, hermitian=True)
    of_labels = torch.einsum("sc,sr,rc->c", labels, covariance, labels).clamp_min(0).sqrt()
    return size * float(of_labels.sum()), size * float(covariance[-1, -1].clamp_min(0).sqrt())
