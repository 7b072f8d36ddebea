"""This module leads a walk out of a wrong place, where units are on the wrong side of a fold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from softleak.matching.gauss_newton.damped_descent import DampedDescent, Walk
from softleak.matching.gauss_newton.folded_units import FoldedUnits
from softleak.matching.gauss_newton.newton_model import LinearisedShare
from softleak.matching.gauss_newton.step_damping import Damping
from softleak.matching.stopping import Stopping

CHANGES_AT_ONCE = 2048  # their matrix with the unknowns is to fit in 64 MiB
NORMAL_RIDGE = 1e-10  # what keeps a normal matrix of unit diagonal positive definite


@dataclass(frozen=True)
class FoldEscape:
    """This moves units to the other side of their activation's dip and walks on from there.

    Many walks get stuck where all but a few units of the first layer are right. A unit on the wrong
    side of the dip passes on what it should, but its slope has the wrong sign. Which units these
    are is read from the share: with the right slope, more of what is left of the misfit could be
    explained by pixels.

    Attributes:
        tries: how many units are tried in a round, those that explain most first.
        rounds: how often a walk is led out of a wrong place.
        gain: a move counts if it leaves at most this part of the misfit.
        trial: within so many steps the misfit has to be as low; then the walk goes on.
        nearest: units whose two inputs are nearer to each other than this are not moved, because
            steps cross so short a way by themselves.
        furthest: units whose two inputs are farther apart than this are not moved.
        ridge: how much the length of a move counts beside what it does to other units.
        damping: how steps after a move are damped.
    """

    tries: int = 4
    rounds: int = 8
    gain: float = 0.9
    trial: int = 5
    nearest: float = 0.15
    furthest: float = 4.0
    ridge: float = 1e-2
    damping: Damping = field(default_factory=lambda: Damping(lowered=0.3))

    def __call__(
        self, descent: DampedDescent, walk: Walk, linearised: LinearisedShare, stopping: Stopping
    ) -> Walk:
        """Return the walk with what follows it, or the walk itself if no move helps.

        Args:
            descent: how steps are taken.
            walk: a walk that got stuck.
            linearised: the normal equations of the share.
            stopping: it is told of every step and asked whether to go on.
        """
        for _ in range(self.rounds):
            if walk.misfits[-1] < descent.precise or stopping.over:
                break
            try:
                further = self._moved(descent, walk, linearised, stopping)
            except (RuntimeError, NotImplementedError):  # an operation without a batched form
                further = None
            if further is None:
                break
            walk = further
        return walk

    def _moved(
        self, descent: DampedDescent, walk: Walk, linearised: LinearisedShare, stopping: Stopping
    ) -> Walk | None:
        """Return the walk with the first move that leaves less of the misfit; None if none does."""
        goal, steps = self.gain * walk.misfits[-1], walk.steps
        near = replace(descent, damping=self.damping, hopeless=goal)
        equations, trial = linearised.equations, replace(near, steps=self.trial)
        for z in self._moves(walk, linearised):
            found = trial(equations, z, linearised, stopping)
            steps += found.steps
            unfinished = found.steps >= self.trial or found.misfits[-1] > descent.precise
            if found.misfits[-1] <= goal and unfinished:
                first, found = found, near(equations, found.z, linearised, stopping)
                found = replace(found, misfits=first.misfits + found.misfits[1:])
                steps += found.steps
            if found.misfits[-1] <= goal:
                return replace(found, misfits=walk.misfits + found.misfits, steps=steps)
            if stopping.over:
                break
        return None

    def _moves(self, walk: Walk, linearised: LinearisedShare) -> Iterator[Tensor]:
        """Yield the unknowns (n,) with one unit moved, those units first that explain most."""
        units = FoldedUnits.of(linearised.equations.function, walk.z)
        if units is None:
            return
        twins = units.twins()
        apart = (twins - units.entered).abs()
        able = ((apart > self.nearest) & (apart < self.furthest)).nonzero().flatten()
        if not len(able):
            return
        change = units.slopes(twins[able]) - units.slopes(units.entered[able])
        touched, by_slope = units.tangents(able)
        gains = explained(walk, linearised, touched, by_slope * change[:, None])
        best = able[gains.argsort(descending=True)[: self.tries]]
        for unit, move in zip(best, units.moves(best, self.ridge), strict=True):
            yield walk.z + move * (twins[unit] - units.entered[unit])


def explained(walk: Walk, linearised: LinearisedShare, touched: Tensor, changes: Tensor) -> Tensor:
    """Return by how much each change of some rows lowers the squared misfit that pixels leave.

    Args:
        walk: where the walk ended, with residuals ``r`` (R,).
        linearised: the normal equations of the share.
        touched: the rows (T,) that change.
        changes: their changes ``v`` (K, T), not weighted.

    Returns:
        ``‖P r‖² − ‖P (r + v)‖²`` (K,), where ``P`` takes away what a change of the unknowns can do.
    """
    weight = linearised.equations.weight * linearised.used
    normal = linearised(walk.z, walk.r, torch.float64)
    jacobian = linearised.model.products(torch.float64).jacobian(walk.z, weight, touched)
    scale = normal.matrix.diagonal().rsqrt()
    scaled = normal.matrix * scale[:, None] * scale
    scaled.diagonal().add_(NORMAL_RIDGE)
    factor = torch.linalg.cholesky(scaled)
    slope = torch.linalg.solve_triangular(factor, (normal.slope * scale)[:, None], upper=False)

    def gained(some: Tensor) -> Tensor:
        v = some * weight[touched]
        sides = (v @ jacobian.T).mul_(scale)
        pixels = torch.linalg.solve_triangular(factor, sides.T, upper=False)
        along = v @ walk.r[touched] - (slope.T @ pixels)[0]
        gains: Tensor = pixels.square_().sum(0) - v.square().sum(1) - 2 * along
        return gains

    parts = torch.split(changes, CHANGES_AT_ONCE)
    return torch.cat([gained(some) for some in parts])
