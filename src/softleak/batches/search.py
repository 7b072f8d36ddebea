"""Search the samples of a batch one at a time, and deflate what is found (§9)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.batches.space import SHORTEST_VECTOR, HeadSpace
from softleak.batches.systems import (
    SamplePoints,
    SampleSystem,
    Supports,
    equation_errors,
    row_errors,
)
from softleak.numerics.levenberg import Levenberg

HALVINGS = 60  # of the interval that holds the length of a step; the last bit of a double is 52
LONGEST_STEP = 1e4  # in units of a step that raises one logit by one


def leading_points(system: SampleSystem, leaders: Tensor, leads: Tensor) -> Tensor:
    """Return points ``β`` (n, K) where a class leads the sum of all others by ``leads`` (n,).

    The direction of the step is the one that raises the logit of ``leaders`` (n,) most. If another
    class ends up ahead, it is the one that leads: in few dimensions not every class can.
    """
    M, offset = system.logits
    if not M.shape[1]:
        return M.new_zeros(len(leaders), 0)
    centred = M - M.mean(0)
    wanted = torch.eye(len(M), dtype=M.dtype, device=M.device)[leaders.to(M.device)]
    step = wanted @ torch.linalg.pinv(centred).T
    raised = step @ centred.T
    step = step / raised.abs().amax(-1, keepdim=True).clamp_min(SHORTEST_VECTOR)
    raised = step @ M.T
    top, leads = raised.argmax(-1, keepdim=True), leads.to(M.device)
    low, high = torch.zeros_like(leads), torch.full_like(leads, LONGEST_STEP)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        logits = middle[:, None] * raised + offset
        ahead = logits.gather(-1, top)[:, 0]
        others = logits.scatter(-1, top, -torch.inf).logsumexp(-1)
        short = ahead - others < leads
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
    return torch.mul(low[:, None], step)


# What decides which solutions can be samples of one batch.
SELECT_COUPLING = 2e-2  # ``a_i·b_j`` of two samples is at most this, relative to ``a_i·b_i``
SELECT_SAME = 1e-3  # two solutions whose ``a_i·b_j`` equals ``a_i·b_i`` to within this are one
SELECT_PARALLEL = 1e-8  # two solutions are one if the cosine of their ``a`` is above one minus this
SELECT_KEPT = 64  # the number of solutions that are compared with each other
SELECT_SETS = 6  # the number of sets that are tried at most


@dataclass(frozen=True, eq=False)
class FoundSamples:
    """Samples that fit, with the flat of labels that each belongs to (N,)."""

    at: SamplePoints
    kind: Tensor

    @classmethod
    def none(cls, space: HeadSpace) -> FoundSamples:
        """Return no sample."""
        a, p = space.U.new_zeros(0, space.rank), space.U.new_zeros(0, space.classes)
        return cls(SamplePoints(a, a, p, p), torch.zeros(0, dtype=torch.long, device=a.device))

    def take(self, rows: Tensor | list[int]) -> FoundSamples:
        """Return some of the samples."""
        at = self.at
        rows = torch.as_tensor(rows, dtype=torch.long, device=at.a.device)
        return FoundSamples(
            SamplePoints(at.a[rows], at.b[rows], at.label[rows], at.p[rows]), self.kind[rows]
        )

    def __len__(self) -> int:
        return len(self.kind)


def distinct(found: FoundSamples) -> FoundSamples:
    """Return each solution once; the first of several is kept."""
    found = found.take(list(range(min(len(found), 4 * SELECT_KEPT))))
    at = found.at
    unit = at.a / (at.a * at.b).sum(-1, keepdim=True)
    same = ((unit @ at.b.mT) - 1).abs() < SELECT_SAME
    direction = at.a / at.a.norm(dim=-1, keepdim=True)
    same &= (direction @ direction.mT) > 1 - SELECT_SAME
    same |= (direction @ direction.mT) > 1 - SELECT_PARALLEL
    same &= found.kind[:, None] == found.kind[None]
    return found.take((~torch.tril(same, -1).any(1)).nonzero()[:, 0])


def joined(one: FoundSamples, other: FoundSamples) -> FoundSamples:
    """Return the solutions of both, each once."""
    a, b = one.at, other.at
    parts = zip((a.a, a.b, a.label, a.p), (b.a, b.b, b.label, b.p), strict=True)
    both = SamplePoints(*(torch.cat(pair) for pair in parts))
    return distinct(FoundSamples(both, torch.cat([one.kind, other.kind])))


def compatible(pool: FoundSamples, most: int) -> list[list[int]]:
    """Return sets of solutions that can stand together, the largest first.

    Of two samples of one batch ``a_i·b_j`` and ``a_j·b_i`` both vanish.
    """
    pool = pool.take(list(range(min(len(pool), SELECT_KEPT))))
    products = pool.at.a @ pool.at.b.mT
    own = torch.diagonal(products).abs().sqrt()
    apart = products.abs() <= SELECT_COUPLING * own[:, None] * own[None]
    apart = apart & apart.mT
    sets = {tuple(sorted(members)) for members in _cliques(apart, most)}
    order = sorted(sets, key=lambda members: (-len(members), sum(members)))
    return [list(members) for members in order[:SELECT_SETS]]


def _cliques(apart: Tensor, most: int) -> Iterator[list[int]]:
    """Yield a set of mutually compatible solutions from each of them, taken greedily."""
    for first in range(len(apart)):
        members, rest = [first], apart[first].clone()
        while len(members) < most and bool(rest.any()):
            members.append(int(rest.nonzero()[0, 0]))
            rest &= apart[members[-1]]
        yield members


ROUNDS = 6  # how often the search is repeated in what is left of the space
STARTS = 24  # the number of starting points per set of classes
# The number of problems of the first round, as far as ``FEWEST_STARTS`` allows. Most batches need
# no more, and later rounds search fewer dimensions.
FIRST_PROBLEMS = 240
FEWEST_STARTS = 8  # the number of starting points per set of classes in any round
MOST_PROBLEMS = 4096  # the number of problems that are solved at once, at most
STRETCH = (0.5, 2.0)  # the range of factors that starting features are multiplied by
SCATTER = 0.5  # the size of the random part of a starting point, relative to usual features
LARGEST_LEAD = 25.0  # of one logit over the others at a starting point
SUREST_LEAD = 45.0  # the same where rows are levelled, so that weaker samples are told
FIT_MISFIT = 30.0  # a solution may miss its equations by this many standard errors
WEAKEST = 6.0  # a sample is longer than this many standard errors where rows are levelled
FIT_NEGATIVE = 1e-4  # no entry of a label may be below minus this
SEED = 0  # the seed of the starting points
# A solution is known by steps that promise to lower the cost to nothing; a point whose step
# promises less than a tenth is left there.
SEARCH = Levenberg(settled=0.1)


def starts_of_round(number: int, kinds: int) -> int:
    """Return the starting points per set of classes in a round, of this many sets."""
    return STARTS if number else min(STARTS, max(FEWEST_STARTS, FIRST_PROBLEMS // kinds))


def explore(
    space: HeadSpace,
    supports: Supports,
    features: Tensor,
    known: Tensor,
    generator: torch.Generator,
    starts: int,
    *,
    scaled: bool = True,
) -> FoundSamples:
    """Return samples of one family that fit the head's gradient, the best first.

    Args:
        space: the factors of the head's gradient.
        supports: the flats that labels may lie on.
        features: (n, I) usual features, from which the search starts.
        known: (N, R) the ``a`` of samples that were found before. Only others are searched.
        generator: the source of the starting points.
        starts: the number of starting points per set of classes.
        scaled: whether the scale of the share is known.
    """
    system = _deflated(space, supports, known, scaled)
    beta = _starts(system, features, starts, generator)
    kind = torch.arange(len(supports), device=beta.device).repeat(len(beta))
    beta = beta.repeat_interleave(len(supports), 0)
    beta, cost, kind = SEARCH.minimise(system, beta, kind)
    return _fitting(system, FoundSamples(system.point(beta, kind), kind), cost)


def _deflated(space: HeadSpace, supports: Supports, a: Tensor, scaled: bool) -> SampleSystem:
    """Return the system of one more sample, whose ``b`` is orthogonal to every ``a`` found."""
    rows, right = [*a], [0.0] * len(a)
    if space.constraint is not None:
        rows, right = [*rows, space.constraint], [*right, 1.0]
    identity = torch.eye(space.rank, dtype=space.U.dtype, device=space.U.device)
    if not rows:
        return SampleSystem(space, supports, identity, torch.zeros_like(identity[0]), scaled)
    matrix = torch.stack(rows)
    basis = torch.linalg.svd(matrix)[2][len(rows) :].T
    start = torch.linalg.pinv(matrix) @ matrix.new_tensor(right)
    return SampleSystem(space, supports, basis, start, scaled)


def _starts(
    system: SampleSystem, features: Tensor, starts: int, generator: torch.Generator
) -> Tensor:
    """Return starting points ``β`` (n, K).

    Half of them are usual features, stretched and scattered. The others give logits in which one
    class leads, by more or less, as those of a trained network do.
    """
    space = system.space
    count = max(1, min(starts, MOST_PROBLEMS // len(system.supports)))
    usual = space.coordinates(features)
    drawn = torch.randint(len(usual), (count,), generator=generator).to(usual.device)
    low, high = STRETCH
    factor = low + (high - low) * torch.rand(count, 1, generator=generator, dtype=torch.double)
    noise = torch.randn(count, space.rank, generator=generator, dtype=torch.double)
    spread = SCATTER * usual.abs().mean(0)
    near = usual[drawn] * factor.to(usual.device) + spread * noise.to(usual.device)
    near = (near - system.start) @ system.basis
    leaders = torch.randint(space.classes, (count,), generator=generator)
    lead = SUREST_LEAD if space.is_levelled else LARGEST_LEAD
    leads = lead * torch.rand(count, generator=generator, dtype=torch.double)
    return torch.cat([near, leading_points(system, leaders, leads)])


def _fitting(system: SampleSystem, found: FoundSamples, cost: Tensor) -> FoundSamples:
    """Return the solutions whose residuals are explained by rounding, the best first."""
    space, at = system.space, found.at
    errors = equation_errors(space, row_errors(space), at.a, at.b, at.p)
    errors = system.error_sizes(errors, found.kind)
    size = at.a.norm(dim=-1)
    allowed = FIT_MISFIT * errors * (1 / size + at.b.norm(dim=-1) / (1 + size))
    product = (at.a * at.b).sum(-1)
    least = WEAKEST if space.is_levelled else FIT_MISFIT
    sizeable = (size > least * errors) | system.open_flats[found.kind]
    fits = (cost.sqrt() < allowed) & sizeable
    fits &= (at.label.amin(-1) > -FIT_NEGATIVE) & (product > 0)
    rows = fits.nonzero()[:, 0]
    # Ill-conditioned points are allowed more, but are not better for it.
    return distinct(found.take(rows[cost[rows].argsort()]))
