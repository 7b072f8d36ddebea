"""This module takes damped Gauss–Newton steps without holding a Jacobian or a normal matrix."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from softleak.matching.gauss_newton.damped_descent import Walk
from softleak.matching.gauss_newton.damped_products import DampedProducts, ImageLengths
from softleak.matching.gauss_newton.share_equations import ShareEquations
from softleak.matching.gauss_newton.step_damping import Damping
from softleak.matching.gauss_newton.tangent_products import TangentProducts
from softleak.matching.stopping import Stopping


class LinearStep(NamedTuple):
    """This is a step ``s`` (n,) and what the linear model says is left of the residuals (R,)."""

    s: Tensor
    left: Tensor


@dataclass(frozen=True)
class ConjugateGradients:
    """This finds a step by preconditioned conjugate gradients on the least squares of a place.

    Attributes:
        iterations: the largest number of iterations. The better a share determines an image, the
            fewer are needed; some hundreds are usual.
        forcing: it ends when the slope has shrunk to this part.
    """

    iterations: int = 800
    forcing: float = 1e-2

    def __call__(self, problem: DampedProducts, r: Tensor, stopping: Stopping) -> LinearStep:
        """Return a step that lowers residuals ``r`` (R,), sooner if the time is over."""
        u, left = torch.zeros_like(problem.scale), r
        slope = problem.slope(left)
        direction = turned = problem.preconditioned(slope)
        size = float(slope @ turned)
        goal, loss = size * self.forcing**2, torch.tensor([_rms(r)])
        for _ in range(self.iterations):
            if size <= goal or stopping.over:
                break
            carried, cost = problem.carried(direction), problem.cost(direction)
            pace = size / float(carried @ carried + direction @ cost)
            u, left = u + pace * direction, left - pace * carried
            slope = problem.slope(left) - problem.cost(u)
            turned = problem.preconditioned(slope)
            before, size = size, float(slope @ turned)
            direction = turned + (size / before) * direction
            stopping.tell(0, loss, 1)
        return LinearStep(u / problem.scale, left)


@dataclass(frozen=True)
class MatrixFree:
    """This minimises the weighted misfit of a share where a normal matrix would be too large.

    Attributes:
        steps: the largest number of steps.
        inner: how each step is found.
        mending: how a step is mended that did not do as promised. Where the equations bend, a long
            step spoils the few directions that the share sees best, and few iterations at the
            new place put them right.
        damping: how steps are damped.
        slow: a step that leaves more than this part of the misfit is a slow one.
        patience: how many steps in a row that are slow, or lead uphill, end a precision.
        precise: the misfit, in standard errors, from which on float64 takes over.
    """

    steps: int = 60
    inner: ConjugateGradients = field(default_factory=ConjugateGradients)
    mending: ConjugateGradients = field(default_factory=lambda: ConjugateGradients(20))
    damping: Damping = field(default_factory=Damping)
    slow: float = 0.95
    patience: int = 5
    precise: float = 30.0

    def __call__(
        self,
        equations: ShareEquations,
        z: Tensor,
        products: Callable[[torch.dtype], TangentProducts],
        stopping: Stopping,
    ) -> Walk:
        """Walk from unknowns ``z`` (n,) until nothing is gained, or the steps or time are used.

        Args:
            equations: what is to be fulfilled.
            z: the first iterate, in float64.
            products: the products with the Jacobian, in a dtype.
            stopping: it is told of every step and asked whether to go on.
        """
        lengths = ImageLengths.of(equations.function.shape, self.damping.smoothness)
        r, damping, dtype = equations.residual(z), self.damping.first, torch.float32
        misfits, slow, count, stuck = [_rms(r)], 0, 0, False
        while count < self.steps and not stopping.over and math.isfinite(misfits[-1]):
            linearised = partial(
                DampedProducts.of, equations, products(dtype), lengths, damping=damping
            )
            moved, new, promised = self._moved(equations, z, r, linearised, stopping)
            count += 1
            slow = slow + 1 if _rms(new) >= self.slow * misfits[-1] else 0
            if (less := _less(r, new)) > 0:
                z, r = moved, new
                damping = self.damping.after(damping, less / promised)
                misfits.append(_rms(r))
            else:
                damping *= self.damping.raised
            stopping.tell(1, torch.tensor([misfits[-1]]), 1)
            solved = misfits[-1] < self.precise
            stuck = slow >= self.patience or (solved and slow > 0)
            if dtype is torch.float64 and stuck:
                break
            if stuck or solved:
                dtype, slow = torch.float64, 0
        return Walk(z, r, tuple(misfits), None, stuck, count)

    def _moved(
        self,
        equations: ShareEquations,
        z: Tensor,
        r: Tensor,
        linearised: Callable[..., DampedProducts],
        stopping: Stopping,
    ) -> tuple[Tensor, Tensor, float]:
        """Return where a step leads (n,), its residuals (R,), and the decrease that it promised."""
        problem = linearised(z=z)
        s, left = self.inner(problem, r, stopping)
        moved, promised = z - s, max(_less(r, left), 1e-300)
        new = equations.residual(moved)
        if _less(r, new) < self.damping.good * promised:
            near = linearised(z=moved, scale=problem.scale)
            moved = moved - self.mending(near, new, stopping).s
            new = equations.residual(moved)
        return moved, new, promised


def _less(r: Tensor, new: Tensor) -> float:
    """Return by how much the square of the misfit falls."""
    return float(r.square().sum() - new.square().sum())


def _rms(r: Tensor) -> float:
    return float(r.square().mean().sqrt())
