"""Walk downhill by Levenberg–Marquardt steps, first in float32, then in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from softleak.matching.gauss_newton.equations import ShareEquations
from softleak.matching.gauss_newton.model import NormalEquations
from softleak.matching.reconstruction import Stopping


@dataclass(frozen=True)
class Damping:
    """How the damping follows the success of the steps."""

    first: float = 1e-2  # the damping of the first step, relative to the normal matrix's diagonal
    least: float = 1e-14  # the least damping
    raised: float = 10.0  # the factor by which it grows if a step does not lower the misfit
    lowered: float = 0.1  # the factor by which it falls after a step that keeps the linear promise
    tries: int = 8  # how often a step is tried before the walk counts as stuck
    good: float = 0.5  # the part of the promised decrease from which on the damping falls
    poor: float = 0.25  # the part below which it doubles
    # the power of the frequency by which an image is damped; 0: each pixel alone
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


class Linearised(Protocol):
    """Compute the normal equations at an iterate ``z`` (n,) with residuals ``r`` (R,)."""

    def __call__(self, z: Tensor, r: Tensor, dtype: torch.dtype) -> NormalEquations:
        """Return the normal equations there, from products in a dtype."""

    def moved(self, normal: NormalEquations, z: Tensor, r: Tensor) -> NormalEquations:
        """Return the matrix of before with the slope there, which is quick to compute."""


@dataclass(frozen=True, eq=False)
class Walk:
    """Where a walk ended."""

    z: Tensor  # the last iterate (n,)
    r: Tensor  # its residuals (R,), in units of their standard errors
    misfits: tuple[float, ...]  # the root mean square of the residuals at first and after each step
    normal: NormalEquations | None  # those in float64 behind the last steps, if it came so far
    stuck: bool  # whether no step lowers the misfit any more
    steps: int  # how often the Jacobian was computed


class Taken(NamedTuple):
    """Where a step led: the iterate (n,), its residuals (R,) and the next damping."""

    z: Tensor
    r: Tensor
    damping: float


@dataclass(frozen=True)
class DampedDescent:
    """Minimise the weighted misfit of a share by Levenberg–Marquardt.

    Near the solution the Jacobian hardly changes. After each step, further ones are taken with the
    same matrix and the slope of the new place, as long as they gain much.
    """

    steps: int = 60  # the largest number of steps with a matrix of their own
    damping: Damping = field(default_factory=Damping)  # how steps are damped
    slow: float = 0.995  # a step that leaves more than this part of the misfit is a slow one
    patience: int = 3  # how many slow steps in a row end a precision
    precise: float = 30.0  # the misfit, in standard errors, from which on float64 takes over
    # a further step with the same matrix counts if it leaves at most this part of the misfit. Far
    # from the solution few do, and the walk goes on with a matrix of its place. In float64, where
    # matrices are dear and the solution is near, every step that is not slow counts
    again: float = 0.5
    repeats: int = 10  # the largest number of further steps with one matrix
    hopeless: float = math.inf  # a walk that gets stuck in float32 with a larger misfit is given up

    def __call__(
        self, equations: ShareEquations, z: Tensor, linearised: Linearised, stopping: Stopping
    ) -> Walk:
        """Walk from unknowns ``z`` (n,) until nothing is gained, or steps or time are used."""
        here = Taken(z, equations.residual(z), self.damping.first)
        misfits, slow, count = [root_mean_square(here.r)], 0, 0
        dtype, normal, stuck = torch.float32, None, False
        while count < self.steps and not stopping.over and math.isfinite(misfits[-1]):
            found = linearised(here.z, here.r, dtype)
            normal = found if dtype is torch.float64 else None
            count += 1
            taken, settled = self._step(equations, here, found, self.damping.tries), False
            if taken is not None:
                most = self.again if dtype is torch.float32 else self.slow
                path, settled = self._repeated(equations, taken, found, linearised, most)
                here, before = path[-1], misfits[-1]
                misfits += [root_mean_square(one.r) for one in path]
                slow = slow + 1 if misfits[-1] > self.slow * before else 0
            stopping.tell(1, torch.tensor([misfits[-1]]), 1)
            stuck = taken is None or slow >= self.patience
            solved = misfits[-1] < self.precise
            if dtype is torch.float64 and (stuck or (solved and (settled or slow > 0))):
                break
            if stuck and misfits[-1] > self.hopeless:
                break
            if dtype is torch.float32 and (stuck or solved):
                dtype, slow, stuck = torch.float64, 0, False
                here = here._replace(damping=min(here.damping, self.damping.first))
        if normal is not None:
            # Damping holds back what the share hardly sees; the errors are predicted without it.
            free = here._replace(damping=self.damping.least)
            here = self._step(equations, free, linearised.moved(normal, here.z, here.r), 1) or here
            misfits.append(root_mean_square(here.r))
        return Walk(here.z, here.r, tuple(misfits), normal, stuck, count)

    def _repeated(
        self,
        equations: ShareEquations,
        taken: Taken,
        found: NormalEquations,
        linearised: Linearised,
        most: float,
    ) -> tuple[list[Taken], bool]:
        """Return a step and those that follow with the same matrix, and whether nothing is left.

        Each of them leaves at most a part ``most`` of the misfit.
        """
        path = [taken]
        while len(path) <= self.repeats:
            here = path[-1]
            moved = linearised.moved(found, here.z, here.r)
            further = self._step(equations, here, moved, 1)
            part = (
                math.inf
                if further is None
                else root_mean_square(further.r) / root_mean_square(here.r)
            )
            if further is None or part > most:
                return path, self.slow < part <= 1 or self._promises_little(here, moved)
            path.append(further)
        return path, False

    def _promises_little(self, here: Taken, found: NormalEquations) -> bool:
        """Return whether the solution is near and even the linear equations promise a slow step."""
        promise = found.step(here.damping) if root_mean_square(here.r) < self.precise else None
        return promise is not None and promise[1] < (1 - self.slow**2) * _squares(here.r)

    def _step(
        self, equations: ShareEquations, here: Taken, found: NormalEquations, tries: int
    ) -> Taken | None:
        """Return where a step leads that lowers the misfit; None if none of the tries does."""
        size, damping = _squares(here.r), here.damping
        for _ in range(tries):
            step = found.step(damping)
            if step is not None:
                moved = here.z - step[0]
                new = equations.residual(moved)
                less = size - _squares(new)
                if less > 0:
                    gain = less / max(step[1], 1e-300)
                    return Taken(moved, new, self.damping.after(damping, gain))
            damping *= self.damping.raised
        return None


def _squares(r: Tensor) -> float:
    return float(r.square().sum())


def root_mean_square(r: Tensor) -> float:
    """Return the misfit of residuals (R,), in units of their standard errors."""
    return float(r.square().mean().sqrt())
