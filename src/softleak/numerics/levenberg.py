"""Solve many small nonlinear least-squares problems at once (Levenberg–Marquardt)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

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
        """Lower the sum of squares of every problem from its start ``x`` (N, K).

        Returns the points (M, K), their costs (M,) and kinds (M,), of the problems that were kept.
        """
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
