"""Walk downhill by Levenberg–Marquardt steps, first in float32, then in float64.

``DampedDescent`` is the walk, ``NormalSteps`` computes a step by a normal matrix.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from softleak.matching.gauss_newton.equations import ShareEquations
from softleak.matching.gauss_newton.metric import Metric
from softleak.matching.gauss_newton.products import NewtonModel
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
    smoothness: float = 2.0  # an image is damped by this power of the frequency; 0: each pixel

    def cautious(self, smooth: bool) -> Damping:
        """Return the damping of a further attempt: it begins high and falls slowly.

        Rough parts of an image that are let go too early go astray and do not come back. They are
        damped as much as in the first attempt if ``smooth``, else less.
        """
        slow = replace(self, first=max(self.first, 1.0), lowered=max(self.lowered, 0.4))
        return slow if smooth else replace(slow, smoothness=self.smoothness / 2)

    def after(self, damping: float, gain: float) -> float:
        """Return the damping of the next step, from the part of the promise that was kept."""
        if gain > self.good:
            return max(damping * self.lowered, self.least)
        return damping * 2 if gain < self.poor else damping


class Taken(NamedTuple):
    """Where a step led: the iterate (n,), its residuals (R,) and the next damping."""

    z: Tensor
    r: Tensor
    damping: float


@dataclass(frozen=True, eq=False)
class Walk:
    """Where a walk ended."""

    z: Tensor  # the last iterate (n,)
    r: Tensor  # its residuals (R,), in units of their standard errors
    misfits: tuple[float, ...]  # the root mean square of the residuals at first and after each step
    normal: NormalEquations | None  # those in float64 behind the last steps, if it came so far
    stuck: bool  # whether no step lowers the misfit any more
    steps: int  # how often the Jacobian was computed


class Advance(NamedTuple):
    """What steps with one Jacobian led to."""

    path: list[Taken]  # where they led, one after the other; nothing if no step helps
    settled: bool = False  # whether even the linear equations promise little more
    normal: NormalEquations | None = None  # the matrix that they were taken with


class Steps(Protocol):
    """A way to compute steps that lower the residuals of some equations."""

    @property
    def equations(self) -> ShareEquations[Any]:
        """Return the equations."""

    def advance(
        self, descent: DampedDescent, here: Taken, dtype: torch.dtype, stopping: Stopping
    ) -> Advance:
        """Take one step, or several with the same Jacobian, by products in a dtype."""

    def finished(self, descent: DampedDescent, here: Taken, last: Advance) -> Taken | None:
        """Return where a last step without damping leads, if there is one and it helps."""


@dataclass(frozen=True)
class DampedDescent:
    """Minimise the weighted misfit of a share by Levenberg–Marquardt."""

    steps: int = 60  # the largest number of Jacobians
    damping: Damping = field(default_factory=Damping)  # how steps are damped
    slow: float = 0.995  # a step that leaves more than this part of the misfit is a slow one
    patience: int = 3  # how many slow steps in a row end a precision
    precise: float = 30.0  # the misfit, in standard errors, from which on float64 takes over
    repeats: int = 10  # the largest number of further steps with one matrix
    hopeless: float = math.inf  # a walk that gets stuck in float32 with a larger misfit is given up

    def __call__(self, steps: Steps, z: Tensor, stopping: Stopping) -> Walk:
        """Walk from unknowns ``z`` (n,) until nothing is gained, or steps or time are used."""
        here = Taken(z, steps.equations.residual(z), self.damping.first)
        misfits, slow, count = [root_mean_square(here.r)], 0, 0
        dtype, last, stuck = torch.float32, Advance([]), False
        while count < self.steps and not stopping.over and math.isfinite(misfits[-1]):
            last = steps.advance(self, here, dtype, stopping)
            count, before = count + 1, misfits[-1]
            misfits += [root_mean_square(one.r) for one in last.path if one.r is not here.r]
            here = last.path[-1] if last.path else here
            stopping.tell(1, torch.tensor([misfits[-1]]), 1)
            slow = slow + 1 if misfits[-1] >= self.slow * before else 0
            stuck, solved = not last.path or slow >= self.patience, misfits[-1] < self.precise
            if dtype is torch.float64 and (stuck or (solved and (last.settled or slow > 0))):
                stuck = True
                break
            if stuck and misfits[-1] > self.hopeless:
                break
            if dtype is torch.float32 and (stuck or solved):
                dtype, last, slow, stuck = torch.float64, Advance([]), 0, False
                here = here._replace(damping=min(here.damping, self.damping.first))
        if dtype is torch.float64 and (end := steps.finished(self, here, last)):
            here = end
            misfits.append(root_mean_square(here.r))
        normal = last.normal if dtype is torch.float64 else None
        return Walk(here.z, here.r, tuple(misfits), normal, stuck, count)


def squares(r: Tensor) -> float:
    """Return the sum of the squares of residuals (R,)."""
    return float(r.square().sum())


def root_mean_square(r: Tensor) -> float:
    """Return the misfit of residuals (R,), in units of their standard errors."""
    return float(r.square().mean().sqrt())


@dataclass(frozen=True, eq=False)
class NormalEquations:
    """``JᵀJ`` (n, n) and ``Jᵀr`` (n,) in float64, at one iterate."""

    matrix: Tensor  # ``JᵀJ``
    slope: Tensor  # ``Jᵀr``
    metric: Metric = field(default_factory=Metric)  # how long a change of the unknowns is

    @classmethod
    def of(
        cls, jacobian: Tensor, r: Tensor, metric: Metric | None = None, blocks: int = 6
    ) -> NormalEquations:
        """Multiply a transposed Jacobian (n, R) with itself, by half, and with residuals (R,)."""
        n = len(jacobian)
        matrix = jacobian.new_empty(n, n, dtype=torch.double)
        edges = [round(n * k / blocks) for k in range(blocks + 1)]
        for low, high in itertools.pairwise(edges):
            found = (jacobian[low:high] @ jacobian[:high].T).double()
            matrix[low:high, :high] = found
            matrix[:high, low:high] = found.T
        return cls(matrix, (jacobian @ r.to(jacobian.dtype)).double(), metric or Metric())

    def step(self, damping: float) -> tuple[Tensor, float] | None:
        """Return the damped step (n,) and the decrease of ``‖r‖²`` that it promises.

        ``(JᵀJ + μ M) s = Jᵀr`` with the lengths ``M``; the new iterate is ``z − s``. None means
        that the matrix is not positive definite at this damping.
        """
        damped = self.metric.damped(self.matrix, damping)
        scale = damped.diagonal().rsqrt()
        factor, failed = torch.linalg.cholesky_ex(damped * scale[:, None] * scale)
        if int(failed):
            return None
        s = torch.cholesky_solve((self.slope * scale)[:, None], factor)[:, 0] * scale
        promised = float(2 * s @ self.slope - s @ (self.matrix @ s))
        return s, promised


# A further step with the same matrix counts in float32 if it leaves at most this part of the
# misfit. In float64, where matrices are dear and the solution is near, each that is not slow.
AGAIN = 0.5


@dataclass(eq=False)
class NormalSteps:
    """Steps by the normal equations of a share, of whose Jacobian one is held at most.

    Near the solution the Jacobian hardly changes. After each step, further ones are taken with the
    same matrix and the slope of the new place, as long as they gain much.
    """

    model: NewtonModel[Any]  # the network
    equations: ShareEquations[Any]  # the equations of the share, in float64
    metric: Metric  # how long a change of the unknowns is
    _held: dict[torch.dtype, Tensor] = field(default_factory=dict, init=False, repr=False)

    def advance(
        self, descent: DampedDescent, here: Taken, dtype: torch.dtype, stopping: Stopping
    ) -> Advance:
        """Step to where the misfit is lower, and on with the same matrix while that gains much."""
        found = self.linearised(here.z, here.r, dtype)
        taken = self._step(descent, here, found, descent.damping.tries)
        if taken is None:
            return Advance([], normal=found)
        path, most = [taken], AGAIN if dtype is torch.float32 else descent.slow
        while len(path) <= descent.repeats:
            moved = self.moved(found, path[-1].z, path[-1].r)
            further = self._step(descent, path[-1], moved, 1)
            left = root_mean_square(path[-1].r)
            part = math.inf if further is None else root_mean_square(further.r) / left
            if further is None or part > most:
                little = self._promises_little(descent, path[-1], moved)
                return Advance(path, descent.slow < part <= 1 or little, found)
            path.append(further)
        return Advance(path, normal=found)

    def _promises_little(self, descent: DampedDescent, here: Taken, found: NormalEquations) -> bool:
        """Return whether the solution is near and even the linear equations promise a slow step."""
        near = root_mean_square(here.r) < descent.precise
        promise = found.step(here.damping) if near else None
        return promise is not None and promise[1] < (1 - descent.slow**2) * squares(here.r)

    def finished(self, descent: DampedDescent, here: Taken, last: Advance) -> Taken | None:
        """Damping holds back what the share hardly sees; errors are predicted without it."""
        if last.normal is None:
            return None
        free = here._replace(damping=descent.damping.least)
        return self._step(descent, free, self.moved(last.normal, here.z, here.r), 1) or here

    def _step(
        self, descent: DampedDescent, here: Taken, found: NormalEquations, tries: int
    ) -> Taken | None:
        """Return where a step leads that lowers the misfit; None if none of the tries does."""
        size, damping = squares(here.r), here.damping
        for _ in range(tries):
            step = found.step(damping)
            if step is not None:
                moved = here.z - step[0]
                new = self.equations.residual(moved)
                less = size - squares(new)
                if less > 0:
                    gain = less / max(step[1], 1e-300)
                    return Taken(moved, new, descent.damping.after(damping, gain))
            damping *= descent.damping.raised
        return None

    def linearised(self, z: Tensor, r: Tensor, dtype: torch.dtype) -> NormalEquations:
        """Return the normal equations at ``z`` (n,) with residuals (R,), by products in a dtype."""
        weight, products = self.equations.weight, self.model.products(dtype)
        out = self._held.pop(dtype, None)
        self._held.clear()  # what another precision left behind
        if self._kept is None:
            jacobian, r = products.reduced(z, r, weight, out)
        else:
            jacobian, r = products.jacobian(z, weight, self._kept, out), r[self._kept]
        self._held[dtype] = jacobian
        return NormalEquations.of(jacobian, r, self.metric)

    def moved(self, normal: NormalEquations, z: Tensor, r: Tensor) -> NormalEquations:
        """Return the matrix of before with the slope ``Jᵀr`` at ``z``, in float64."""
        back = self.model.products(torch.float64).against(z)
        return replace(normal, slope=back(r * self.equations.weight * self.used))

    @cached_property
    def used(self) -> Tensor:
        """Return one for every row (R,) that the normal equations are made of, zero for others."""
        every = torch.ones_like(self.equations.weight)
        kept = self._kept
        return every if kept is None else torch.zeros_like(every).index_fill_(0, kept, 1.0)

    @cached_property
    def _kept(self) -> Tensor | None:
        return self.model.kept()
