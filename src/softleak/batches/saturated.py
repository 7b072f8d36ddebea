"""Walk along the flat direction in which two samples of one class share their labels out.

Of two samples of one class that are much alike, a joint search knows the sum of both labels'
coefficients at once, but follows the curved flat direction of their difference only slowly.
With the label of one sample held, all else is solved for in a few steps. So the label is held at
one value after another, each solved from where the last one led. A walk over all values shows where
minima are, and parabolas lead to the bottom of one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from itertools import combinations

import torch
from torch import Tensor

from softleak.batches.search import FoundSamples
from softleak.batches.space import SHORTEST_VECTOR, HeadSpace
from softleak.batches.systems import (
    JointSystem,
    SamplePoints,
    Supports,
    beyond,
    equation_errors,
    polish,
    row_errors,
)

# What bounds how many sets of solutions are looked at.
SETS_LOOKED_AT = 20_000  # the number of sets whose misfit is computed
SETS_RETURNED = 4  # the number of sets that are worth solving
# The number of further sets with two samples of one class. How such samples share their labels out
# is not known yet, so that they explain less than they could.
SETS_ALIKE = 2
SETS_WEIGHT = 0.1  # the length that is assumed of a label's coefficient at first
SETS_SINGULAR = 1e-9  # sets whose ``a`` are closer to dependence than this are left out


def saturated_samples(space: HeadSpace, supports: Supports) -> FoundSamples:
    """Return a sample for each flat of labels with a direction in the span of ``U``.

    There ``p`` is one-hot and ``δ = p − y`` has the direction of the flat, in either sense.
    """
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


def biorthogonal(space: HeadSpace, at: SamplePoints, *, scaled: bool = True) -> SamplePoints:
    """Return samples (…, R, R) whose ``b`` follow from their ``a``.

    ``Σ a_i = B Uᵀ g`` holds for the gradient ``g`` of the head's bias, and gives their lengths.
    """
    a = at.a
    scale: Tensor | float = 1.0
    if not scaled:
        scale = (at.a * at.b).sum(-1).mean(-1)[..., None, None]
    elif space.with_bias:
        total = space.factor * space.left(space.mean_difference)
        lengths = torch.linalg.solve_ex(a.mT, total.expand(*a.shape[:-2], -1)[..., None])[0]
        usable = (lengths > 0).all(-2, keepdim=True) & lengths.isfinite().all(-2, keepdim=True)
        a = torch.where(usable, a * lengths, a)
    b = scale * torch.linalg.inv_ex(a)[0].mT
    p = torch.softmax(b @ space.logit_map.T + space.offset, -1)
    return SamplePoints(a, b, at.label, p)


def likely_sets(
    space: HeadSpace,
    supports: Supports,
    pool: FoundSamples,
    *,
    scaled: bool = True,
    alike: bool = True,
) -> list[list[int]]:
    """Return the sets of R solutions that explain the gradient best together.

    If so asked, further ones with two samples of one class, ``alike``, follow.
    """
    R, most = space.rank, len(pool)
    while math.comb(most, R) > SETS_LOOKED_AT:
        most -= 1
    if most < R:
        return []
    sets = _sets(most, R).to(space.U.device)
    at, kind = pool.at, pool.kind[sets]
    sizes = at.a[sets] / at.a[sets].norm(dim=-1, keepdim=True).clamp_min(SHORTEST_VECTOR)
    # The inverse is as large as dependence is near, and much cheaper than singular values.
    regular = torch.linalg.inv_ex(sizes)[0].norm(dim=(-2, -1)) < 1 / SETS_SINGULAR
    sets, kind = sets[regular], kind[regular]
    found = SamplePoints(at.a[sets], at.b[sets], at.label[sets], at.p[sets])
    whole = biorthogonal(space, found, scaled=scaled)
    misfit = unexplained(space, supports, whole, kind)
    order = misfit.argsort()
    classes = kind[order].sort(-1).values
    same = order[(classes.diff(dim=-1) == 0).any(-1)]
    best = torch.cat([order[:SETS_RETURNED], same[: SETS_ALIKE if alike else 0]])
    return [sorted(members) for members in sets[best].tolist()]


def unexplained(
    space: HeadSpace,
    supports: Supports,
    whole: SamplePoints,
    kind: Tensor,
    errors: Tensor | None = None,
) -> Tensor:
    """Return what labels of these kinds (…, R) do not explain of samples (…, R, R), squared.

    Residuals are divided by their ``errors`` (…, R, C), or by the lengths of ``a`` without them.
    """
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


def shared_out(
    space: HeadSpace, supports: Supports, found: FoundSamples, *, scaled: bool = True
) -> list[FoundSamples]:
    """Return the best shares of the coefficients for each sample of a class that another has."""
    if not supports.unknowns:
        return []
    alike = (found.kind[:, None] == found.kind[None]).sum(1) > 1
    return [
        shared
        for i in alike.nonzero()[:, 0].tolist()
        for shared in _best_shares(space, supports, found, i, scaled=scaled)
    ]


def _best_shares(
    space: HeadSpace, supports: Supports, found: FoundSamples, row: int, *, scaled: bool
) -> list[FoundSamples]:
    """Return the samples with those coefficients of one label that explain the gradient best.

    Residuals count by their rounding: the small probabilities of a sure sample tell most.
    """
    at, kind = found.at, found.kind
    T = supports.directions[kind[row]][:, -1]
    c = torch.linspace(0, 1, SHARES, dtype=T.dtype, device=T.device)
    label = supports.origin[kind[row]] + c[:, None] * T
    a = at.a.expand(SHARES, -1, -1).clone()
    a[:, row] = space.left(at.p[row] - label)
    many = SamplePoints(a, *(part.expand(SHARES, -1, -1) for part in (at.b, at.label, at.p)))
    whole = biorthogonal(space, many, scaled=scaled)
    errors = equation_errors(space, row_errors(space), whole.a, whole.b, whole.p)
    misfit = unexplained(space, supports, whole, kind, errors)
    return [
        replace(found, at=SamplePoints(*(part[i] for part in _parts(whole))))
        for i in lowest_minima(misfit)
    ]


def lowest_minima(misfit: Tensor) -> list[int]:
    """Return the places of the lowest local minima of misfits (N,), the lowest first."""
    misfit = torch.nan_to_num(misfit, nan=torch.inf)
    walled = torch.nn.functional.pad(misfit, (1, 1), value=torch.inf)
    minimum = (misfit < walled[:-2]) & (misfit <= walled[2:])
    order = misfit.where(minimum, torch.inf).argsort()
    return order[: min(MINIMA, int(minimum.sum()))].tolist()


def _parts(at: SamplePoints) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return at.a, at.b, at.label, at.p


HELD_STEPS = 33  # the number of coefficients that a label is held at, between none and all
PARABOLAS = 6  # the number of parabolas that lead to the bottom
FIRST_WIDTH, LEAST_WIDTH = 1e-2, 1e-5  # the distance of two coefficients of a parabola
LONGEST_MOVE = 8.0  # the longest step to the bottom of a parabola, in widths


def walk_flat_direction(
    space: HeadSpace, supports: Supports, found: FoundSamples, *, scaled: bool = True
) -> list[FoundSamples]:
    """Return the samples at the lowest places of the flat direction, none without a twin."""
    alike = (found.kind[:, None] == found.kind[None]).sum(1) > 1
    if not supports.unknowns or not bool(alike.any()):
        return []
    row = int(found.at.p.amax(-1).where(alike, torch.inf).argmin())  # the least sure of them
    own, at = supports.take(found.kind), biorthogonal(space, found.at, scaled=scaled)
    points, misfits = [], []
    for c in torch.linspace(0, 1, HELD_STEPS, dtype=at.a.dtype, device=at.a.device):
        a = at.a.clone()
        a[row] = space.left(at.p[row] - _held(own, row, c).origin[row])
        start = biorthogonal(space, replace(at, a=a), scaled=scaled)
        misfit, point = _solved_with(space, own, start, row, c, scaled=scaled)
        at = point if bool(misfit.isfinite()) else at
        points.append(at)
        misfits.append(misfit)
    best = lowest_minima(torch.stack(misfits))
    return [replace(found, at=points[i]) for i in best]


def descend_flat_direction(system: JointSystem, x: Tensor, row: int) -> SamplePoints:
    """Return the samples at the bottom of the flat direction that unknowns (U,) are in."""
    space, own, scaled = system.space, system.supports, system.scaled
    at, c, width = system.point(x), system.unpack(x)[1][row, -1], FIRST_WIDTH
    for _ in range(PARABOLAS):
        costs, points = zip(
            *(_solved_with(space, own, at, row, c + k * width, scaled=scaled) for k in (-1, 0, 1)),
            strict=True,
        )
        slope, bend = float(costs[2] - costs[0]) / 2, float(costs[0] - 2 * costs[1] + costs[2])
        move = -slope / bend if bend > 0 else -LONGEST_MOVE * (1 if slope > 0 else -1)
        move = max(-LONGEST_MOVE, min(LONGEST_MOVE, move))
        at = points[min(range(3), key=lambda k: float(costs[k]))]
        c, width = c + move * width, max(LEAST_WIDTH, abs(move) * width / 4)
        if width == LEAST_WIDTH:
            break
    return _solved_with(space, own, at, row, c, scaled=scaled)[1]


def _solved_with(
    space: HeadSpace, own: Supports, at: SamplePoints, row: int, c: Tensor, *, scaled: bool
) -> tuple[Tensor, SamplePoints]:
    """Return the mean square that is left with one coefficient held, and the samples there."""
    system, x = polish(space, _held(own, row, c), at, scaled=scaled)
    values = system.values(x[None], torch.zeros(1, dtype=torch.long))
    return values.square().mean(), system.point(x)


def _held(own: Supports, row: int, c: Tensor) -> Supports:
    """Return the flats of all samples, that of one with its last coefficient held."""
    origin, directions = own.origin.clone(), own.directions.clone()
    origin[row] += c * directions[row][:, -1]
    directions[row][:, -1] = 0.0
    return replace(own, origin=origin, directions=directions)
