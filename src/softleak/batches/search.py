"""Search the samples of a batch one at a time, and sets of them that explain it together (§9).

Of two samples of one class that are much alike, a joint search knows the sum of both labels'
coefficients at once, but follows the curved flat direction of their difference only slowly.
With the label of one sample held, all else is solved for in a few steps. So the label is held at
one value after another, each solved from where the last one led. A walk over all values shows where
minima are, and parabolas lead to the bottom of one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations

import torch
from torch import Tensor

from softleak.batches.certificate import certify
from softleak.batches.systems import (
    NO_KIND,
    POLISH,
    SHORTEST_VECTOR,
    THOROUGH,
    FoundSamples,
    HeadSpace,
    JointSystem,
    SamplePoints,
    SampleSystem,
    Supports,
    beyond,
    equation_errors,
    polish,
    row_errors,
)
from softleak.numerics.least_squares import Levenberg, promise

HALVINGS = 60  # of the interval that holds the length of a step; the last bit of a double is 52
LONGEST_STEP = 1e4  # in units of a step that raises one logit by one


def leading_points(system: SampleSystem, leaders: Tensor, leads: Tensor) -> Tensor:
    """Return points ``β`` (n, K) where ``leaders``, or a class that is raised more, lead."""
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


SELECT_COUPLING = 2e-2  # ``a_i·b_j`` of two samples is at most this, relative to ``a_i·b_i``
SELECT_SAME = 1e-3  # two solutions whose ``a_i·b_j`` equals ``a_i·b_i`` to within this are one
SELECT_PARALLEL = 1e-8  # two solutions are one if the cosine of their ``a`` is above one minus this
SELECT_KEPT = 64  # the number of solutions that are compared with each other
SELECT_SETS = 6  # the number of sets that are tried at most


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
    both = SamplePoints(*map(torch.cat, zip(one.at, other.at, strict=True)))
    return distinct(FoundSamples(both, torch.cat([one.kind, other.kind])))


def compatible(pool: FoundSamples, most: int) -> list[list[int]]:
    """Return sets of solutions with ``a_i·b_j = a_j·b_i = 0`` for any two, the largest first."""
    pool = pool.take(list(range(min(len(pool), SELECT_KEPT))))
    products = pool.at.a @ pool.at.b.mT
    own = torch.diagonal(products).abs().sqrt()
    apart = products.abs() <= SELECT_COUPLING * own[:, None] * own[None]
    apart = apart & apart.mT
    sets = set()
    for first in range(len(apart)):  # a set from each of them, taken greedily
        members, rest = [first], apart[first].clone()
        while len(members) < most and bool(rest.any()):
            members.append(int(rest.nonzero()[0, 0]))
            rest &= apart[members[-1]]
        sets.add(tuple(sorted(members)))
    order = sorted(sets, key=lambda members: (-len(members), sum(members)))
    return [list(members) for members in order[:SELECT_SETS]]


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
# A solution is known by steps that promise to lower the cost to nothing; a point whose step
# promises less than a tenth is left there.
SEARCH = Levenberg(settled=0.1)


def explore(
    space: HeadSpace, supports: Supports, features: Tensor, known: Tensor,
    generator: torch.Generator, starts: int,
) -> FoundSamples:  # fmt: skip
    """Return samples of one family that fit the head's gradient, the best first."""
    system = _deflated(space, supports, known)
    beta = _starts(system, features, starts, generator)
    kind = torch.arange(len(supports), device=beta.device).repeat(len(beta))
    beta = beta.repeat_interleave(len(supports), 0)
    beta, cost, kind = SEARCH.minimise(system, beta, kind)
    return _fitting(system, FoundSamples(system.point(beta, kind), kind), cost)


def _deflated(space: HeadSpace, supports: Supports, a: Tensor) -> SampleSystem:
    """Return the system of one more sample, whose ``b`` is orthogonal to every ``a`` found."""
    rows, right = [*a], [0.0] * len(a)
    if space.constraint is not None:
        rows, right = [*rows, space.constraint], [*right, 1.0]
    if not rows:
        return SampleSystem.whole(space, supports)
    matrix = torch.stack(rows)
    basis = torch.linalg.svd(matrix)[2][len(rows) :].T
    start = torch.linalg.pinv(matrix) @ matrix.new_tensor(right)
    return SampleSystem(space, supports, basis, start)


def _starts(
    system: SampleSystem, features: Tensor, starts: int, generator: torch.Generator
) -> Tensor:
    """Return starts ``β`` (n, K): half are usual features, half are logits that one class leads."""
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


SETS_LOOKED_AT = 20_000  # the number of sets whose misfit is computed
SETS_RETURNED = 4  # the number of sets that are worth solving
# The number of further sets with two samples of one class. How such samples share their labels out
# is not known yet, so that they explain less than they could.
SETS_ALIKE = 2
SETS_WEIGHT = 0.1  # the length that is assumed of a label's coefficient at first
SETS_SINGULAR = 1e-9  # sets whose ``a`` are closer to dependence than this are left out


def saturated_samples(space: HeadSpace, supports: Supports) -> FoundSamples:
    """Return a sample with one-hot ``p`` for each flat of labels with a direction in span ``U``."""
    T = supports.directions
    kinds, deltas = [], []
    own = (T.abs().sum(1) > 0).sum(-1)  # how many directions a flat has; the others are zero
    for count in range(1, T.shape[-1] + 1):
        rows = (own == count).nonzero()[:, 0]
        _, s, flats = beyond(space, T[rows][..., :count])
        within = s[:, -1] < space.indistinct
        direction = flats[within][..., -1]
        direction = direction / direction.norm(dim=-1, keepdim=True).clamp_min(SETS_SINGULAR)
        kinds += [rows[within], rows[within]]
        deltas += [SETS_WEIGHT * direction, -SETS_WEIGHT * direction]
    if not kinds:
        return FoundSamples.none(space)
    kind, delta = torch.cat(kinds), torch.cat(deltas)
    label = supports.origin[kind] - delta
    a = space.left(delta)
    b = a / a.square().sum(-1, keepdim=True).clamp_min(SETS_SINGULAR)
    return FoundSamples(SamplePoints(a, b, label, supports.origin[kind]), kind)


def biorthogonal(space: HeadSpace, at: SamplePoints) -> SamplePoints:
    """Return samples (…, R, R) whose ``b`` follow from their ``a``.

    ``Σ a_i = B Uᵀ g`` holds for the gradient ``g`` of the head's bias, and gives their lengths.
    """
    a = at.a
    scale: Tensor | float = 1.0
    if not space.scaled:
        scale = (at.a * at.b).sum(-1).mean(-1)[..., None, None]
    elif space.with_bias:
        total = space.factor * space.left(space.mean_difference)
        lengths = torch.linalg.solve_ex(a.mT, total.expand(*a.shape[:-2], -1)[..., None])[0]
        usable = (lengths > 0).all(-2, keepdim=True) & lengths.isfinite().all(-2, keepdim=True)
        a = torch.where(usable, a * lengths, a)
    b = scale * torch.linalg.inv_ex(a)[0].mT
    return SamplePoints(a, b, at.label, space.predicted(b))


def likely_sets(
    space: HeadSpace, supports: Supports, pool: FoundSamples, alike: bool = True
) -> list[list[int]]:
    """Return the sets of R solutions that explain the gradient best together."""
    R, most = space.rank, len(pool)
    while math.comb(most, R) > SETS_LOOKED_AT:
        most -= 1
    if most < R:
        return []
    sets = _sets(most, R).to(space.U.device)
    kind, a = pool.kind[sets], pool.at.a[sets]
    sizes = a / a.norm(dim=-1, keepdim=True).clamp_min(SHORTEST_VECTOR)
    # The inverse is as large as dependence is near, and much cheaper than singular values.
    regular = torch.linalg.inv_ex(sizes)[0].norm(dim=(-2, -1)) < 1 / SETS_SINGULAR
    sets, kind = sets[regular], kind[regular]
    found = SamplePoints(*(part[sets] for part in pool.at))
    whole = biorthogonal(space, found)
    misfit = unexplained(space, supports, whole, kind)
    order = misfit.argsort()
    classes = kind[order].sort(-1).values
    same = order[(classes.diff(dim=-1) == 0).any(-1)]
    best = torch.cat([order[:SETS_RETURNED], same[: SETS_ALIKE if alike else 0]])
    return [sorted(members) for members in sets[best].tolist()]


def unexplained(
    space: HeadSpace, supports: Supports, whole: SamplePoints, kind: Tensor,
    errors: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return what labels of these kinds (…, R) do not explain of samples (…, R, R), squared."""
    sizes = whole.a.norm(dim=-1, keepdim=True) / space.rows if errors is None else errors
    sizes = sizes.clamp_min(SHORTEST_VECTOR)
    rest = (whole.p - whole.a @ space.spread.T - supports.origin[kind]) / sizes
    T = supports.directions
    if T.shape[-1]:
        q = torch.linalg.qr(space.rows[:, None] * T)[0][kind]
        if errors is not None:
            q, _ = torch.linalg.qr(T[kind] / sizes[..., None])
        rest = rest - (q @ (q.mT @ rest[..., None]))[..., 0]
    return torch.nan_to_num(rest.square().sum((-2, -1)), nan=torch.inf)


@lru_cache(maxsize=16)
def _sets(n: int, k: int) -> Tensor:
    """Return all ways (N, k) to choose ``k`` of ``n``; every round of a search asks for them."""
    return torch.tensor(list(combinations(range(n), k)))


SHARES = 400  # the number of coefficients that are looked at, between none and all
MINIMA = 3  # the number of lowest places among them that are worth a local search


def _twins(found: FoundSamples) -> Tensor:
    """Return which samples (R,) another one of the same kind stands beside."""
    return (found.kind[:, None] == found.kind[None]).sum(1) > 1


def shared_out(space: HeadSpace, supports: Supports, found: FoundSamples) -> list[FoundSamples]:
    """Return the best shares of the coefficients for each sample of a class that another has."""
    rows = _twins(found).nonzero()[:, 0].tolist() if supports.unknowns else []
    return [one for i in rows for one in _best_shares(space, supports, found, i)]


def _best_shares(
    space: HeadSpace, supports: Supports, found: FoundSamples, row: int
) -> list[FoundSamples]:
    """Return the samples with those coefficients of one label that explain the gradient best."""
    at, kind = found.at, found.kind
    T = supports.directions[kind[row]][:, -1]
    c = torch.linspace(0, 1, SHARES, dtype=T.dtype, device=T.device)
    label = supports.origin[kind[row]] + c[:, None] * T
    a = at.a.expand(SHARES, -1, -1).clone()
    a[:, row] = space.left(at.p[row] - label)
    many = SamplePoints(a, *(part.expand(SHARES, -1, -1) for part in (at.b, at.label, at.p)))
    whole = biorthogonal(space, many)
    errors = equation_errors(space, row_errors(space), whole.a, whole.b, whole.p)
    misfit = unexplained(space, supports, whole, kind, errors)
    best = lowest_minima(misfit)
    return [replace(found, at=SamplePoints(*(part[i] for part in whole))) for i in best]


def lowest_minima(misfit: Tensor) -> list[int]:
    """Return the places of the lowest local minima of misfits (N,), the lowest first."""
    misfit = torch.nan_to_num(misfit, nan=torch.inf)
    walled = torch.nn.functional.pad(misfit, (1, 1), value=torch.inf)
    minimum = (misfit < walled[:-2]) & (misfit <= walled[2:])
    order = misfit.where(minimum, torch.inf).argsort()
    return order[: min(MINIMA, int(minimum.sum()))].tolist()


HELD_STEPS = 33  # the number of coefficients that a label is held at, between none and all
PARABOLAS = 6  # the number of parabolas that lead to the bottom
FIRST_WIDTH, LEAST_WIDTH = 1e-2, 1e-5  # the distance of two coefficients of a parabola
LONGEST_MOVE = 8.0  # the longest step to the bottom of a parabola, in widths


def walk_flat_direction(
    space: HeadSpace, supports: Supports, found: FoundSamples
) -> list[FoundSamples]:
    """Return the samples at the lowest places of the flat direction, none without a twin."""
    alike = _twins(found)
    if not supports.unknowns or not bool(alike.any()):
        return []
    row = int(found.at.p.amax(-1).where(alike, torch.inf).argmin())  # the least sure of them
    own, at = supports.take(found.kind), biorthogonal(space, found.at)
    points, misfits = [], []
    for c in torch.linspace(0, 1, HELD_STEPS, dtype=at.a.dtype, device=at.a.device):
        a = at.a.clone()
        a[row] = space.left(at.p[row] - _held(own, row, c).origin[row])
        start = biorthogonal(space, at._replace(a=a))
        misfit, point = _solved_with(space, own, start, row, c)
        at = point if bool(misfit.isfinite()) else at
        points.append(at)
        misfits.append(misfit)
    best = lowest_minima(torch.stack(misfits))
    return [replace(found, at=points[i]) for i in best]


def descend_flat_direction(system: JointSystem, x: Tensor, row: int) -> SamplePoints:
    """Return the samples at the bottom of the flat direction that unknowns (U,) are in."""
    space, own = system.space, system.supports
    at, c, width = system.point(x), system.unpack(x)[1][row, -1], FIRST_WIDTH
    for _ in range(PARABOLAS):
        costs, points = zip(
            *(_solved_with(space, own, at, row, c + k * width) for k in (-1, 0, 1)),
            strict=True,
        )
        slope, bend = float(costs[2] - costs[0]) / 2, float(costs[0] - 2 * costs[1] + costs[2])
        move = -slope / bend if bend > 0 else -LONGEST_MOVE * (1 if slope > 0 else -1)
        move = max(-LONGEST_MOVE, min(LONGEST_MOVE, move))
        at = points[min(range(3), key=lambda k: float(costs[k]))]
        c, width = c + move * width, max(LEAST_WIDTH, abs(move) * width / 4)
        if width == LEAST_WIDTH:
            break
    return _solved_with(space, own, at, row, c)[1]


def _solved_with(
    space: HeadSpace, own: Supports, at: SamplePoints, row: int, c: Tensor
) -> tuple[Tensor, SamplePoints]:
    """Return the mean square that is left with one coefficient held, and the samples there."""
    system, x = polish(space, _held(own, row, c), at)
    return system.values(x[None], NO_KIND).square().mean(), system.point(x)


def _held(own: Supports, row: int, c: Tensor) -> Supports:
    """Return the flats of all samples, that of one with its last coefficient held."""
    origin, directions = own.origin.clone(), own.directions.clone()
    origin[row] += c * directions[row][:, -1]
    directions[row][:, -1] = 0.0
    return replace(own, origin=origin, directions=directions)


DESCENTS = 3  # how often a search is led to the bottom of its flat direction
UNSETTLED = 1e-2  # a search that ended with this part of the cost promised has not arrived
TOO_FAR = 1e3  # a set of samples that misses by this many standard errors is not followed further
WALKED = 3  # the number of sets whose labels of one class are followed along their flat direction
CONVINCING = 2.0  # one of this misfit ends the search: samples that run away to infinity have more
EXPLAINED = 4.0  # a root mean square of this many standard errors is explained by rounding


@dataclass(frozen=True, eq=False)
class Whole:
    """A batch all of whose samples were found."""

    system: JointSystem  # the system of all samples, weighed by rounding
    x: Tensor  # (U,) its solution
    misfit: float  # the root mean square of its residuals, in standard errors

    @property
    def explained(self) -> bool:
        """Return whether rounding explains what is left, but not the gradient itself."""
        return self.misfit <= EXPLAINED < self.system.signal(self.x)


def find_batch(
    space: HeadSpace, supports: Supports, features: Tensor
) -> tuple[Whole | None, FoundSamples]:
    """Search all samples of a batch; return the whole batch if it was found, and what else was."""
    generator = torch.Generator().manual_seed(0)
    pool = saturated_samples(space, supports)
    searched = supports.opened() if space.is_levelled else supports
    known = pool.at.a[: space.rank - 1]
    tried: set[tuple[int, ...]] = set()
    unsolved: list[tuple[float, FoundSamples]] = []
    kept: tuple[Whole, FoundSamples] | None = None
    for number in range(ROUNDS):
        few = min(STARTS, max(FEWEST_STARTS, FIRST_PROBLEMS // len(supports)))
        starts = STARTS if number else few  # per set of classes
        fresh = explore(space, searched, features, known, generator, starts)
        pool = joined(pool, fresh)
        sets = compatible(pool, space.rank) + likely_sets(space, searched, pool, alike=number > 0)
        for members in sets:
            if len(members) == space.rank and tuple(members) not in tried:
                tried.add(tuple(members))
                chosen = pool.take(members)
                whole = solve_jointly(space, supports, chosen)
                if whole.explained and whole.misfit <= CONVINCING:
                    return whole, chosen
                if whole.explained and (kept is None or whole.misfit < kept[0].misfit):
                    kept = whole, chosen
                unsolved.append((whole.misfit, chosen))
        # Every other round starts from nothing, in case what was found is wrong.
        part = pool.take(sets[0] if sets and number % 3 != 2 else [])
        known = part.at.a[: space.rank - 1]
    if kept is not None:
        return kept
    walked = _walked(space, supports, unsolved) if space.scaled else None
    return walked, pool.take(compatible(pool, space.rank)[0] if len(pool) else [])


def _walked(
    space: HeadSpace, supports: Supports, unsolved: list[tuple[float, FoundSamples]]
) -> Whole | None:
    """Return the batch that is found along the flat direction of two samples of a class."""
    near = sorted((one for one in unsolved if one[0] < TOO_FAR), key=lambda tried: tried[0])
    alike = [found for _, found in near if bool(_twins(found).any())]
    for found in alike[:WALKED]:
        for start in walk_flat_direction(space, supports, found):
            whole = _solved(space, supports, start, solver=THOROUGH)
            if whole.explained:
                return whole
    return None


def solve_jointly(space: HeadSpace, supports: Supports, found: FoundSamples) -> Whole:
    """Solve for as many samples as the space has dimensions, from where each was found."""
    together = replace(found, at=biorthogonal(space, found.at))
    starts = [together, *shared_out(space, supports, found)]
    if space.is_levelled:  # There each sample's own small probabilities tell its ``b`` best.
        starts = [found, *starts]
    best = _solved(space, supports, starts[0])
    for start in starts[1:]:
        if best.explained:
            break
        best = min(best, _solved(space, supports, start), key=lambda one: one.misfit)
    return best


def _solved(
    space: HeadSpace, supports: Supports, found: FoundSamples, solver: Levenberg = POLISH
) -> Whole:
    """Return what a local search finds; where it creeps it is led along its flat direction."""
    own = supports.take(found.kind)

    def polished(at: SamplePoints, solver: Levenberg) -> Whole:
        system, x = polish(space, own, at, solver=solver)
        return Whole(system, x, system.misfit(x))

    whole = polished(found.at, solver)
    if not whole.explained:
        return whole
    for _ in range(DESCENTS if supports.unknowns else 0):
        system, x = whole.system, whole.x
        if promise(system, x[None], found.kind[:1]) <= UNSETTLED:
            break
        doubtful = int(certify(system, x, whole.misfit).label_errors.argmax())
        at = descend_flat_direction(system, x, doubtful)
        whole = min(whole, polished(at, THOROUGH), key=lambda one: one.misfit)
    return whole
