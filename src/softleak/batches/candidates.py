"""This module keeps the solutions of single samples, and finds those that can stand together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.batches.head_space import HeadSpace
from softleak.batches.one_sample import SamplePoints


@dataclass(frozen=True)
class SelectSettings:
    """These settings decide which solutions can be samples of one batch.

    Attributes:
        coupling: ``a_i·b_j`` of two samples is at most this, relative to ``a_i·b_i``.
        same: two solutions whose ``a_i·b_j`` equals ``a_i·b_i`` to within this are one.
        parallel: two solutions are one if the cosine of their ``a`` is above one minus this.
        kept: the number of solutions that are compared with each other.
        sets: the number of sets that are tried at most.
    """

    coupling: float = 2e-2
    same: float = 1e-3
    parallel: float = 1e-8
    kept: int = 64
    sets: int = 6


SELECT = SelectSettings()


@dataclass(frozen=True, eq=False)
class FoundSamples:
    """These are samples that fit, with the flat of labels that each belongs to (N,)."""

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
    found = found.take(list(range(min(len(found), 4 * SELECT.kept))))
    at = found.at
    unit = at.a / (at.a * at.b).sum(-1, keepdim=True)
    same = ((unit @ at.b.mT) - 1).abs() < SELECT.same
    direction = at.a / at.a.norm(dim=-1, keepdim=True)
    same &= (direction @ direction.mT) > 1 - SELECT.same
    same |= (direction @ direction.mT) > 1 - SELECT.parallel
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
    pool = pool.take(list(range(min(len(pool), SELECT.kept))))
    products = pool.at.a @ pool.at.b.mT
    own = torch.diagonal(products).abs().sqrt()
    apart = products.abs() <= SELECT.coupling * own[:, None] * own[None]
    apart = apart & apart.mT
    sets = {tuple(sorted(members)) for members in _cliques(apart, most)}
    order = sorted(sets, key=lambda members: (-len(members), sum(members)))
    return [list(members) for members in order[: SELECT.sets]]


def _cliques(apart: Tensor, most: int) -> Iterator[list[int]]:
    """Yield a set of mutually compatible solutions from each of them, taken greedily."""
    for first in range(len(apart)):
        members, rest = [first], apart[first].clone()
        while len(members) < most and bool(rest.any()):
            members.append(int(rest.nonzero()[0, 0]))
            rest &= apart[members[-1]]
        yield members
