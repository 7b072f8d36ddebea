"""This module walks downhill by Levenberg–Marquardt steps, first in float32, then in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.matching.gauss_newton.normal_step import NormalEquations
from softleak.matching.gauss_newton.share_equations import ShareEquations
from softleak.matching.stopping import Stopping

Linearised = Callable[[Tensor, Tensor, torch.dtype], NormalEquations]


@dataclass(frozen=True)
class Damping:
    """These settings say how the damping follows the success of the steps.

    Attributes:
        first: the damping of the first step, relative to the diagonal of the normal matrix.
        least: the least damping.
        raised: the factor by which it grows if a step does not lower the misfit.
        lowered: the factor by which it falls after a step that does as the linear model promises.
        tries: how often a step is tried before the walk counts as stuck.
        good: the part of the promised decrease from which on the damping falls.
        poor: the part below which it doubles.
        smoothness: the power of the frequency by which changes of an image are damped; zero means
            that every pixel is damped by itself.
    """

    first: float = 1e-2
    least: float = 1e-14
    raised: float = 10.0
    lowered: float = 0.1
    tries: int = 8
    good: float = 0.5
    poor: float = 0.25
    smoothness: float = 2.0

    def cautious(self, smooth: bool) -> Damping:
        """Return the damping of a further attempt: it begins high and falls slowly.

        Where rough parts of an image are let go too early they go astray and do not come back.

        Args:
            smooth: whether rough parts are damped as much as in the first attempt, or less.
        """
        slow = replace(self, first=max(self.first, 1.0), lowered=max(self.lowered, 0.4))
        return slow if smooth else replace(slow, smoothness=self.smoothness / 2)

    def after(self, damping: float, gain: float) -> float:
        """Return the damping of the next step, from the part of the promise that was kept."""
        if gain > self.good:
            return max(damping * self.lowered, self.least)
        return damping * 2 if gain < self.poor else damping


@dataclass(frozen=True, eq=False)
class Walk:
    """This is where a walk ended.

    Attributes:
        z: the last iterate (n,).
        r: its residuals (R,), in units of their standard errors.
        misfits: the root mean square of the residuals at the start and after each step.
        normal: the normal equations in float64 at the last iterate but one step, if the walk came
            so far.
        stuck: whether no step lowers the misfit any more.
        steps: how often the Jacobian was computed.
    """

    z: Tensor
    r: Tensor
    misfits: tuple[float, ...]
    normal: NormalEquations | None
    stuck: bool
    steps: int


@dataclass(frozen=True)
class DampedDescent:
    """This minimises the weighted misfit of a share by Levenberg–Marquardt.

    Attributes:
        steps: the largest number of steps.
        damping: how steps are damped.
        slow: a step that leaves more than this part of the misfit is a slow one.
        patience: how many slow steps in a row end a precision.
        precise: the misfit, in standard errors, from which on float64 takes over.
    """

    steps: int = 60
    damping: Damping = Damping()
    slow: float = 0.995
    patience: int = 3
    precise: float = 30.0

    def __call__(
        self, equations: ShareEquations, z: Tensor, linearised: Linearised, stopping: Stopping
    ) -> Walk:
        """Walk from unknowns ``z`` (n,) until nothing is gained, or the steps or the time are used.

        Args:
            equations: what is to be fulfilled.
            z: the first iterate, in float64.
            linearised: computes the normal equations at an iterate and its residuals, in a dtype.
            stopping: it is told of every step and asked whether to go on.
        """
        r = equations.residual(z)
        misfits, damping, slow, count = [_size(r)], self.damping.first, 0, 0
        dtype, normal, stuck = torch.float32, None, False
        while count < self.steps and not stopping.over and math.isfinite(misfits[-1]):
            found = linearised(z, r, dtype)
            normal = found if dtype is torch.float64 else None
            count += 1
            taken = self._step(equations, z, r, found, damping)
            if taken is not None:
                z, r, damping = taken
                misfits.append(_size(r))
                slow = slow + 1 if misfits[-1] > self.slow * misfits[-2] else 0
            stopping.tell(1, torch.tensor([misfits[-1]]), 1)
            stuck = taken is None or slow >= self.patience
            if dtype is torch.float64 and (stuck or self._done(misfits, slow)):
                break
            if dtype is torch.float32 and (stuck or misfits[-1] < self.precise):
                dtype, slow, stuck = torch.float64, 0, False
                damping = min(damping, self.damping.first)
        return Walk(z, r, tuple(misfits), normal, stuck, count)

    def _done(self, misfits: list[float], slow: int) -> bool:
        """Return whether the misfit is that of rounding, and no longer falls."""
        return misfits[-1] < self.precise and slow > 0

    def _step(
        self,
        equations: ShareEquations,
        z: Tensor,
        r: Tensor,
        found: NormalEquations,
        damping: float,
    ) -> tuple[Tensor, Tensor, float] | None:
        """Return the next iterate, its residuals and the next damping; None if stuck."""
        size = float(r.square().sum())
        for _ in range(self.damping.tries):
            step = found.step(damping)
            if step is not None:
                moved = z - step[0]
                new = equations.residual(moved)
                less = size - float(new.square().sum())
                if less > 0:
                    return moved, new, self.damping.after(damping, less / max(step[1], 1e-300))
            damping *= self.damping.raised
        return None


def _size(r: Tensor) -> float:
    return float(r.square().mean().sqrt())
