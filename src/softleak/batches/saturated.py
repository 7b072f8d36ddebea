"""This module puts samples together whose softmax is saturated, so that ``b`` is open alone.

If a sample's probabilities are one-hot to the last bit, its ``b`` can move without a trace, but the
direction of its ``a`` is known. All directions together determine every ``b``, since
``[b_1 … b_R] = A⁻ᵀ``, and the gradient of the head's bias determines the lengths.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import torch
from torch import Tensor

from softleak.batches.candidates import FoundSamples
from softleak.batches.head_space import SHORTEST_VECTOR, HeadSpace
from softleak.batches.one_sample import SamplePoints, beyond
from softleak.batches.supports import Supports


@dataclass(frozen=True)
class SetSettings:
    """These settings bound how many sets of solutions are looked at.

    Attributes:
        looked_at: the number of sets whose misfit is computed.
        returned: the number of sets that are worth solving.
        alike: the number of further sets with two samples of one class. How such samples share
            their labels out is not known yet, so that they explain less than they could.
        weight: the length that is assumed of a label's coefficient at first.
        singular: sets whose ``a`` are closer to dependence than this are left out.
    """

    looked_at: int = 20_000
    returned: int = 4
    alike: int = 2
    weight: float = 0.1
    singular: float = 1e-9


SETS = SetSettings()


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
        direction = direction / direction.norm(dim=-1, keepdim=True).clamp_min(SETS.singular)
        kinds += [rows[within], rows[within]]
        deltas += [SETS.weight * direction, -SETS.weight * direction]
    if not kinds:
        return FoundSamples.none(space)
    kind, delta = torch.cat(kinds), torch.cat(deltas)
    label = supports.origin[kind] - delta
    a = space.left(delta)
    b = a / a.square().sum(-1, keepdim=True).clamp_min(SETS.singular)
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
    while math.comb(most, R) > SETS.looked_at:
        most -= 1
    if most < R:
        return []
    sets = _sets(most, R).to(space.U.device)
    at, kind = pool.at, pool.kind[sets]
    sizes = at.a[sets] / at.a[sets].norm(dim=-1, keepdim=True).clamp_min(SHORTEST_VECTOR)
    # The inverse is as large as dependence is near, and much cheaper than singular values.
    regular = torch.linalg.inv_ex(sizes)[0].norm(dim=(-2, -1)) < 1 / SETS.singular
    sets, kind = sets[regular], kind[regular]
    found = SamplePoints(at.a[sets], at.b[sets], at.label[sets], at.p[sets])
    whole = biorthogonal(space, found, scaled=scaled)
    misfit = unexplained(space, supports, whole, kind)
    order = misfit.argsort()
    classes = kind[order].sort(-1).values
    same = order[(classes.diff(dim=-1) == 0).any(-1)]
    best = torch.cat([order[: SETS.returned], same[: SETS.alike if alike else 0]])
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
