"""This module takes damped Gauss–Newton steps without holding a Jacobian or a normal matrix."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from softleak.matching.gauss_newton.damped_descent import Walk
from softleak.matching.gauss_newton.damped_products import DampedProducts, ImageLengths
from softleak.matching.gauss_newton.share_equations import ShareEquations
from softleak.matching.gauss_newton.step_damping import Damping
from softleak.matching.gauss_newton.tangent_products import TangentProducts
from softleak.matching.stopping import Stopping


class Step(NamedTuple):
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

    def __call__(self, problem: DampedProducts, r: Tensor, stopping: Stopping) -> Step:
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
        return Step(u / problem.scale, left)


@dataclass(frozen=True)
class MatrixFree:
    """This minimises the weighted misfit of a share where a normal matrix would be too large.

    Attributes:
        steps: the largest number of steps.
        inner: how each step is found.
        damping: how steps are damped.
        slow: a step that leaves more than this part of the misfit is a slow one.
        patience: how many steps in a row that are slow, or lead uphill, end a precision.
        precise: the misfit, in standard errors, from which on float64 takes over.
    """

    steps: int = 60
    inner: ConjugateGradients = field(default_factory=ConjugateGradients)
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
            problem = DampedProducts.of(equations, z, products(dtype), lengths, damping)
            s, left = self.inner(problem, r, stopping)
            count += 1
            new = equations.residual(z - s)
            less, promised = (float(r.square().sum() - one.square().sum()) for one in (new, left))
            slow = slow + 1 if _rms(new) > self.slow * misfits[-1] else 0
            if less > 0:
                z, r = z - s, new
                damping = self.damping.after(damping, less / max(promised, 1e-300))
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


def _rms(r: Tensor) -> float:
    return float(r.square().mean().sqrt())
