"""Solve least squares: weighted ones by normal equations, and many small nonlinear ones at once.

The normal matrix ``N = AᵀA`` of rows A in units of their errors is the inverse covariance of the
solution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor
from torch.func import jacfwd, vmap


def conjugate_gradients(
    normal: Callable[[Tensor], Tensor], right: Tensor, inverse: Callable[[Tensor], Tensor],
    steps: int, tolerance: float = 0.0, over: Callable[[], bool] = lambda: False,
) -> Tensor:  # fmt: skip
    """Return an approximate solution (n,) of ``N x = right``, starting from zero.

    ``normal`` and ``inverse`` give the products of a vector (n,) with N, symmetric and positive
    definite, and with an approximate inverse of it. At most ``steps`` are taken, until the squared
    error ``rᵀ N⁻¹ r`` of the residual r is below ``tolerance``: if N is the inverse covariance of
    x, this is the squared distance in standard errors. It ends at once where ``over`` is true.
    """
    x, rest = torch.zeros_like(right), right
    pre = inverse(rest)
    direction, size = pre, rest @ pre
    for _ in range(steps):
        if not size > tolerance or over():
            break
        moved = normal(direction)
        step = size / (direction @ moved)
        x, rest = x + step * direction, rest - step * moved
        pre = inverse(rest)
        size, last = rest @ pre, size
        direction = pre + size / last * direction
    return x


TINY = 1e-300  # the smallest divisor: it keeps a quotient by zero finite


def cholesky_in_place(matrix: Tensor) -> bool:
    """Replace the lower half of a matrix (n, n) by its Cholesky factor, if it has one."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    matrix.copy_(factor)
    return not failed


# Of the dense solver, whose matrix is scaled to a unit diagonal:
SINGULAR_PIVOT = 1e-13  # a scaled pivot this small belongs to a direction no row sees
DIAGONAL_LIFTS = (0.0, 1e-15, 1e-13, 1e-11, 1e-9, 1e-6)  # until the matrix can be factored
REFINEMENTS = 6  # steps towards the solution of the rows themselves, at most
STEP_TOLERANCE = 1e-3  # refinement stops at a step of this part of the error
ERROR_DRAWS = 64  # from how many draws a standard error is computed; 64 tell it to a tenth


@dataclass(frozen=True, eq=False)
class Solution:
    """The unknowns (n,) of a least-squares problem and their standard errors (n,).

    Where the rows do not determine the unknowns (``determined``), they are the smallest that fit.
    ``condition`` is a lower bound of the scaled matrix's condition number.
    """

    value: Tensor
    error: Tensor
    condition: float
    determined: bool


@dataclass(frozen=True, eq=False)
class Factored:
    """A normal matrix N (n, n) and the Cholesky factor of its scaled form."""

    normal: Tensor  # the matrix N
    scale: Tensor  # the scale s (n,) that makes the diagonal of ``s N s`` one
    factor: Tensor  # the lower factor of ``s N s``, diagonal lifted; its upper half means nothing
    lifted: Tensor  # what was added to the diagonal of N (n,)

    @classmethod
    def of(cls, normal: Tensor, lifts: Sequence[float] = DIAGONAL_LIFTS) -> Factored:
        """Return the factorisation of N, its diagonal lifted as far as necessary."""
        total = 0.0
        for lift in lifts:
            scale, factor = _scaled(normal)
            total += lift
            factor.diagonal().add_(total)
            if cholesky_in_place(factor):
                break
        return cls(normal, scale, factor, total / scale.square())

    def inverse(self, right: Tensor) -> Tensor:
        return self._scaled_step(right) * self.scale

    def solve(self, slope: Callable[[Tensor], Tensor], start: Tensor) -> Solution:
        """Return the x at which ``slope(x) = Aᵀ(b − A x)`` is zero, with its error."""
        x = start
        for _ in range(REFINEMENTS):
            step = self._scaled_step(slope(x))
            x = x + step * self.scale
            if float(step.abs().max()) < STEP_TOLERANCE:
                break
        pivots = self.factor.diagonal()
        draws = drawn(self.factor, ERROR_DRAWS)
        return Solution(
            x,
            draws.square().mean(1).sqrt() * self.scale,
            float((pivots.max() / pivots.min()) ** 2),
            float(pivots.min() ** 2) > SINGULAR_PIVOT,
        )

    def _scaled_step(self, slope: Tensor) -> Tensor:
        """Return ``N⁻¹ slope`` (n,) in units of the scale."""
        return solved(self.factor, (slope * self.scale)[:, None])[:, 0]


def _scaled(normal: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scale s (n,) and ``s N s`` (n, n)."""
    scale = normal.diagonal().clamp_min(TINY).rsqrt()
    return scale, (normal * scale).mul_(scale[:, None])


def solved(factor: Tensor, right: Tensor) -> Tensor:
    """Return ``(L Lᵀ)⁻¹ right`` (n, R) for a lower factor L (n, n).

    For few right sides ``torch.cholesky_solve`` is many times slower.
    """
    half = torch.linalg.solve_triangular(factor, right, upper=False)
    whole: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return whole


def drawn(factor: Tensor, count: int) -> Tensor:
    """Return draws (n, count) with the covariance ``(L Lᵀ)⁻¹`` of a lower factor L (n, n)."""
    noise = reproducible_noise((len(factor), count), factor)
    draws: Tensor = torch.linalg.solve_triangular(factor.mT, noise, upper=True)
    return draws


def reproducible_noise(shape: tuple[int, int], like: Tensor) -> Tensor:
    """Return standard normal numbers that are the same on every call."""
    generator = torch.Generator(like.device).manual_seed(0)
    return torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)


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
    """The Gram matrix (n, n) of columns (n, K), in units of the largest entry, or small vanish."""

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
        """Return the weight of the whole group that leaves the fewest columns to be corrected."""
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
    """Return the trace of the inverse of a positive matrix (n, n), whose diagonal is changed."""
    matrix.diagonal().add_(ridge)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if int(failed):
        matrix.diagonal().add_(1e3 * ridge)
        factor = torch.linalg.cholesky(matrix)
    return float(torch.cholesky_inverse(factor.float()).trace())


@dataclass(frozen=True, eq=False)
class Differentiated:
    """The ``Residuals`` of a function of unknowns (K,) and of what else belongs to each problem."""

    function: Callable[..., Tensor]
    others: tuple[Tensor, ...] = ()  # (P, …) each, of which a problem's kind is the row

    def values(self, x: Tensor, kind: Tensor) -> Tensor:
        return vmap(self.function)(x, *(one[kind] for one in self.others))

    def jacobian(self, x: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
        slopes = vmap(jacfwd(self.function))(x, *(one[kind] for one in self.others))
        return self.values(x, kind), slopes.nan_to_num(0.0)


LARGEST_COST = 1e30  # the cost of a point at which the residuals are not finite


class Residuals(Protocol):
    """The residuals of many problems, each of its own kind."""

    def values(self, x: Tensor, kind: Tensor) -> Tensor:
        """Return the residuals (N, E) at ``x`` (N, K), of problems of these kinds (N,)."""

    def jacobian(self, x: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
        """Return the residuals (N, E) and their derivatives (N, E, K)."""


@dataclass(frozen=True)
class Levenberg:
    """The solver, with its tolerances."""

    iterations: int = 30  # the number of steps that are tried
    damping: float = 1e-2  # the damping of the first step, relative to the matrix's diagonal
    relaxed: float = 0.2  # the factor of the damping after a step that lowered the cost
    stiffened: float = 5.0  # the factor of the damping after one that did not
    dampings: tuple[float, float] = (1e-14, 1e8)  # the least and the largest damping
    checkpoints: tuple[int, ...] = (6, 14)  # iterations after which the largest costs are given up
    kept: float = 1 / 3  # the part of the problems that is kept at a checkpoint
    fewest: int = 64  # the number of problems that are kept in any case
    of_each: int = 2  # and of each kind: costs of different kinds cannot be compared
    settled: float = 1e-6  # the search ends when no step promises more than this part of a cost

    def minimise(
        self, residuals: Residuals, x: Tensor, kind: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Lower the sum of squares of every problem from its start ``x`` (N, K)."""
        damping = torch.full_like(x[:, 0], self.damping) if x.shape[1] else x.new_zeros(len(x))
        cost = _cost(residuals.values(x, kind))
        for iteration in range(self.iterations if x.shape[1] else 0):
            at, J = residuals.jacobian(x, kind)
            step, promised = _step(at, J, damping)
            if bool((promised <= self.settled * cost).all()):
                break
            trial = x - step
            lower = _cost(residuals.values(trial, kind))
            better = lower < cost
            x = torch.where(better[:, None], trial, x)
            cost = torch.where(better, lower, cost)
            factor = torch.where(better, self.relaxed, self.stiffened)
            damping = (damping * factor).clamp(*self.dampings)
            if iteration in self.checkpoints and len(x) > self.fewest:
                kept = self._best(cost, kind)
                x, cost, damping, kind = x[kept], cost[kept], damping[kept], kind[kept]
        return x, cost, kind

    def _best(self, cost: Tensor, kind: Tensor) -> Tensor:
        """Return the problems of the lowest costs, overall and of each kind."""
        order = cost.argsort()
        sorted_kind, by_kind = kind[order].sort(stable=True)
        counts = sorted_kind.bincount()
        place = torch.arange(len(order), device=cost.device)
        rank = torch.empty_like(place)  # of each problem among those of its kind
        rank[by_kind] = place - (counts.cumsum(0) - counts)[sorted_kind]
        most = max(self.fewest, int(self.kept * len(cost)))
        return order[(place < most) | (rank < self.of_each)]


def promise(residuals: Residuals, x: Tensor, kind: Tensor) -> float:
    """Return the part of the cost that a whole Gauss–Newton step promises to lower, at its most."""
    at, J = residuals.jacobian(x, kind)
    _, promised = _step(at, J, torch.zeros_like(at[:, 0]))
    return float((promised / _cost(at).clamp_min(1 / LARGEST_COST)).max())


def _cost(values: Tensor) -> Tensor:
    return torch.nan_to_num(values.square().sum(-1), nan=LARGEST_COST, posinf=LARGEST_COST)


def _step(at: Tensor, J: Tensor, damping: Tensor, ridge: float = 1e-14) -> tuple[Tensor, Tensor]:
    """Return the damped Gauss–Newton step (N, K), and by how much it should lower the cost (N,)."""
    H, slope = J.mT @ J, J.mT @ at[..., None]
    diagonal = torch.diagonal(H, dim1=-2, dim2=-1)
    # The ridge, a part of each diagonal entry, lets a singular matrix be factored.
    H = H + torch.diag_embed(damping[:, None] * diagonal + (ridge * diagonal + 1 / LARGEST_COST))
    L, _ = torch.linalg.cholesky_ex(H)
    step = torch.cholesky_solve(slope, L)[..., 0]
    step = torch.nan_to_num(step, nan=0.0, posinf=0.0, neginf=0.0)
    return step, (step * slope[..., 0]).sum(-1)
