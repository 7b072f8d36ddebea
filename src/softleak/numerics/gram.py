"""Compute normal matrices of one Jacobian with many different weights.

A defence changes the weights of the equations and not the Jacobian. Mostly all equations of one
gradient have the same weight, so that their Gram matrix is computed once, and a normal matrix is a
weighted sum of such matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

BLOCK = 512  # rows of a Gram matrix that are computed at once


FEWEST = 64  # columns of which a Gram matrix is kept; of fewer it is computed as quickly as read
SUBTRACTED = 0.5  # the part of a group's size that may be subtracted, so that few digits are lost


@dataclass(frozen=True, eq=False)
class WeightedGrams:
    """Compute ``J diag(w) Jᵀ`` for any weights, quickly where they are alike within groups."""

    jacobian: Tensor  # the Jacobian ``J``, (n, R)
    sizes: tuple[int, ...]  # how many of the R columns each group has, in their order
    memory: int = 1 << 28  # the bytes for Gram matrices; the largest groups have theirs kept

    def __call__(self, weight: Tensor) -> Tensor:
        """Return the normal matrix (n, n), summed in the dtype of the Jacobian, in float64.

        The Gram matrix of a group is counted with one weight for all of its columns. Columns that
        weigh more are added with the difference, and those that weigh less are subtracted.
        """
        n, rest = len(self.jacobian), weight.clone()
        normal = self.jacobian.new_zeros(n, n)
        for part, own in self._kept:
            usual = own.usual(weight[part])
            normal.add_(own.gram, alpha=usual * own.unit**2)
            rest[part] -= usual
        for sign in (1.0, -1.0):
            some = rest * sign > 0
            if some.any():
                columns = self.jacobian[:, some]
                columns *= (rest[some] * sign).sqrt().to(columns)
                normal.add_(gram_of(columns), alpha=sign)
        return normal.double()

    @cached_property
    def _kept(self) -> tuple[tuple[slice, _GroupGram], ...]:
        """The Gram matrices of the largest groups, as many as memory holds."""
        parts = sorted(self._parts(), key=lambda part: part.start - part.stop)
        room = self.memory // (len(self.jacobian) ** 2 * self.jacobian.element_size())
        return tuple((part, _GroupGram.of(self.jacobian[:, part])) for part in parts[:room])

    def _parts(self) -> Iterator[slice]:
        begin = 0
        for size in self.sizes:
            if size >= FEWEST:
                yield slice(begin, begin + size)
            begin += size


@dataclass(frozen=True, eq=False)
class _GroupGram:
    """The Gram matrix (n, n) of some columns (n, K), divided by ``unit``.

    The unit is the size of the largest entry: the squares of small gradients would vanish.
    """

    columns: Tensor
    unit: float
    gram: Tensor

    @classmethod
    def of(cls, columns: Tensor) -> _GroupGram:
        unit = float(columns.abs().max()) or 1.0
        return cls(columns, unit, gram_of(columns / unit))

    @cached_property
    def sizes(self) -> Tensor:
        """Return the squared length (K,) of each column."""
        lengths: Tensor = torch.linalg.vector_norm(self.columns / self.unit, dim=0)
        return lengths.square()

    def usual(self, weight: Tensor) -> float:
        """Return the weight of the whole group that leaves the fewest columns to be corrected.

        It is the smallest weight, so that only positive parts are added. The largest is taken where
        few columns weigh less, and subtracting them loses no digits.
        """
        least, most = float(weight.min()), float(weight.max())
        light = weight < most
        if least == most or 2 * int(light.sum()) >= len(weight):
            return least
        small = float(self.sizes[light].sum()) <= SUBTRACTED * float(self.sizes.sum())
        return most if small else least


def gram_of(columns: Tensor) -> Tensor:
    """Return ``A Aᵀ`` (n, n) of a matrix (n, K), with half of the work that symmetry spares."""
    n = len(columns)
    found = columns.new_empty(n, n)
    for begin in range(0, n, BLOCK):
        end = min(begin + BLOCK, n)
        torch.mm(columns[begin:end], columns[:end].T, out=found[begin:end, :end])
        found[:begin, begin:end] = found[begin:end, :begin].T
    return found


def inverse_trace(matrix: Tensor, ridge: float) -> float:
    """Return the trace of the inverse of a positive matrix (n, n) that is known to rounding.

    It is the sum of squares of the inverse of the Cholesky factor, which is triangular: of each
    block of its columns only the rows from the diagonal on are computed.

    Args:
        matrix: the matrix. Its diagonal is changed.
        ridge: what is added to the diagonal, because rounding may have left the matrix indefinite.
            If that is not enough, a thousand times as much is added.
    """
    matrix.diagonal().add_(ridge)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if int(failed):
        matrix.diagonal().add_(1e3 * ridge)
        factor = torch.linalg.cholesky(matrix)
    factor = factor.float()
    total = 0.0
    for begin in range(0, len(factor), BLOCK):
        own = factor[begin:, begin:]
        identity = torch.eye(len(own), min(BLOCK, len(own)), device=own.device)
        found = torch.linalg.solve_triangular(own, identity, upper=False)
        total += float(found.square().sum())
    return total
