"""Lead a walk out of a wrong place, where units are on the wrong side of an activation's fold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap
from torch.overrides import TorchFunctionMode

from softleak.matching.gauss_newton.descent import DampedDescent, Damping, NormalSteps, Walk
from softleak.matching.gauss_newton.equations import BatchFunction
from softleak.matching.reconstruction import Stopping

FOLDED = frozenset(("gelu", "silu", "mish"))
FOLD_REACH = 12  # beyond it these activations are flat or straight
FINENESS = 1000  # places within one of the argument
UNITS_AT_ONCE = 64  # units that are followed at once


class _FirstFold(TorchFunctionMode):
    """Catch the first activation that folds, and may change its slope."""

    def __init__(self, change: Tensor | None = None) -> None:
        super().__init__()
        self.change = change  # what is added to the slope of each unit
        self.entered: Tensor | None = None  # what entered the activation, once it ran
        self.act: Callable[[Tensor], Tensor] | None = None  # the activation, once it ran

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (),  # noqa: ANN401 - of any kind
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # fmt: skip  # noqa: ANN401 - whatever the function returns
        own = kwargs or {}
        if self.entered is not None or getattr(func, "__name__", "") not in FOLDED:
            return func(*args, **own)
        u = self.entered = args[0].clone()  # a function that works in place would write over it
        rest = {name: value for name, value in own.items() if name != "inplace"}
        self.act = lambda v: func(v, **rest)
        out = self.act(u)
        if self.change is None:
            return out
        return out + self.change.reshape(u.shape) * (u - u.detach())


@dataclass(frozen=True, eq=False)
class FoldedUnits:
    """The units of the first layer that folds, at one place."""

    function: BatchFunction  # what a client sends
    z: Tensor  # the unknowns (n,)
    entered: Tensor  # what enters the activation of each unit, (U,)
    act: Callable[[Tensor], Tensor]  # the activation

    @classmethod
    def of(cls, function: BatchFunction, z: Tensor) -> FoldedUnits | None:
        """Return the units at unknowns (n,), or None if no layer folds."""
        with torch.no_grad(), _FirstFold() as seen:
            function.model.model(function.inputs(z))
        if seen.entered is None or seen.act is None:
            return None
        return cls(function, z, seen.entered.reshape(-1), seen.act)

    def twins(self) -> Tensor:
        """Return for each unit the input (U,) on the other side of the dip with the same output."""
        grid = torch.linspace(
            -FOLD_REACH, FOLD_REACH, 2 * FOLD_REACH * FINENESS + 1, dtype=torch.double
        )
        values, wanted = self.act(grid), self.act(self.entered)
        dip = int(values.argmin())

        def solved(side: Tensor) -> Tensor:
            """Return where a rising side of the dip, as indices from the dip on, is as wanted."""
            place = torch.searchsorted(values[side], wanted).clamp_max(len(side) - 1)
            return grid[side[place]]

        right, left = torch.arange(dip, len(grid)), torch.arange(dip, -1, -1)
        return torch.where(self.entered > grid[dip], solved(left), solved(right))

    def slopes(self, u: Tensor) -> Tensor:
        """Return the slope of the activation at inputs (U,)."""
        slopes: Tensor = jvp(self.act, (u,), (torch.ones_like(u),))[1]
        return slopes

    def tangents(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows (T,) that change with the slopes of units (K,), and how, as (K, T)."""

        def rows(change: Tensor) -> Tensor:
            with _FirstFold(change):
                return self.function.rows(self.z)

        def along(change: Tensor) -> Tensor:
            carried: Tensor = jvp(rows, (torch.zeros_like(change),), (change,))[1]
            return carried

        with torch.no_grad():
            touched = along(torch.ones_like(self.entered)).nonzero().flatten()
            each = vmap(lambda unit: along(self._only(unit))[touched], chunk_size=UNITS_AT_ONCE)
            return touched, each(chosen)

    def _only(self, unit: Tensor) -> Tensor:
        """Return a one (U,) at the place of a unit, else zeros."""
        return torch.zeros_like(self.entered).index_fill(0, unit, 1.0)

    def moves(self, chosen: Tensor, ridge: float) -> Tensor:
        """Return the changes (K, n) of the unknowns that move one of the units (K,) each by one.

        They move the other units of the layer as little as they can. The ``ridge`` is how much the
        length of a change counts beside that.
        """
        shape, pixels = self.function.shape, self.function.pixels

        def entered(x: Tensor) -> Tensor:
            with _FirstFold() as seen:
                self.function.model.model(x.view(shape))
            return self.z.new_zeros(0) if seen.entered is None else seen.entered.reshape(-1)

        with torch.no_grad():  # a graph of every unit would take gigabytes
            back = vjp(entered, self.z[:pixels])[1]
            each = vmap(lambda unit: back(self._only(unit))[0], chunk_size=UNITS_AT_ONCE)
            by_pixel = each(torch.arange(len(self.entered)))
        matrix = by_pixel.T @ by_pixel
        matrix.diagonal().add_(ridge * matrix.diagonal().mean())
        own = by_pixel[chosen]
        moves = torch.linalg.solve(matrix, own.T).T
        moves = moves / (moves * own).sum(1, keepdim=True)
        return torch.nn.functional.pad(moves, (0, len(self.z) - pixels))


CHANGES_AT_ONCE = 2048  # their matrix with the unknowns is to fit in 64 MiB
NORMAL_RIDGE = 1e-10  # what keeps a normal matrix of unit diagonal positive definite


@dataclass(frozen=True)
class FoldEscape:
    """Move units to the other side of their activation's dip and walk on from there.

    Many walks get stuck where a few units of the first layer are on the wrong side of the dip: they
    pass on what they should, but their slope has the wrong sign. The share tells which they are:
    with the right slope, pixels could explain more of what is left of the misfit.
    """

    tries: int = 4  # how many units are tried in a round, those that explain most first
    rounds: int = 8  # how often a walk is led out of a wrong place
    gain: float = 0.9  # a move counts if it leaves at most this part of the misfit
    trial: int = 5  # within so many steps the misfit has to be as low; then the walk goes on
    nearest: float = 0.15  # units whose inputs are nearer are not moved: steps do it by themselves
    furthest: float = 4.0  # units whose two inputs are farther apart than this are not moved
    ridge: float = 1e-2  # how much the length of a move counts beside what it does to other units
    damping: Damping = field(default_factory=lambda: Damping(lowered=0.3))  # of steps after a move

    def __call__(
        self, descent: DampedDescent, walk: Walk, steps: NormalSteps, stopping: Stopping
    ) -> Walk:
        """Return the walk with what follows it, or the walk itself if no move helps."""
        for _ in range(self.rounds):
            if walk.misfits[-1] < descent.precise or stopping.over:
                break
            try:
                further = self._moved(descent, walk, steps, stopping)
            except (RuntimeError, NotImplementedError):  # an operation without a batched form
                further = None
            if further is None:
                break
            walk = further
        return walk

    def _moved(
        self, descent: DampedDescent, walk: Walk, steps: NormalSteps, stopping: Stopping
    ) -> Walk | None:
        """Return the walk with the first move that leaves less of the misfit; None if none does."""
        goal, count = self.gain * walk.misfits[-1], walk.steps
        near = replace(descent, damping=self.damping, hopeless=goal)
        trial = replace(near, steps=self.trial)
        for z in self._moves(walk, steps):
            found = trial(steps, z, stopping)
            count += found.steps
            unfinished = found.steps >= self.trial or found.misfits[-1] > descent.precise
            if found.misfits[-1] <= goal and unfinished:
                first, found = found, near(steps, found.z, stopping)
                found = replace(found, misfits=first.misfits + found.misfits[1:])
                count += found.steps
            if found.misfits[-1] <= goal:
                return replace(found, misfits=walk.misfits + found.misfits, steps=count)
            if stopping.over:
                break
        return None

    def _moves(self, walk: Walk, steps: NormalSteps) -> Iterator[Tensor]:
        """Yield the unknowns (n,) with one unit moved, those units first that explain most."""
        function = steps.equations.function
        units = FoldedUnits.of(function, walk.z) if isinstance(function, BatchFunction) else None
        if units is None:
            return
        twins = units.twins()
        apart = (twins - units.entered).abs()
        able = ((apart > self.nearest) & (apart < self.furthest)).nonzero().flatten()
        if not len(able):
            return
        change = units.slopes(twins[able]) - units.slopes(units.entered[able])
        touched, by_slope = units.tangents(able)
        gains = explained(walk, steps, touched, by_slope * change[:, None])
        best = able[gains.argsort(descending=True)[: self.tries]]
        for unit, move in zip(best, units.moves(best, self.ridge), strict=True):
            yield walk.z + move * (twins[unit] - units.entered[unit])


def explained(walk: Walk, steps: NormalSteps, touched: Tensor, changes: Tensor) -> Tensor:
    """Return by how much each change of some rows lowers the squared misfit that pixels leave.

    It is ``‖P r‖² − ‖P (r + v)‖²`` (K,) for the residuals ``r`` at the end of the walk, where ``P``
    takes away what a change of the unknowns can do. The rows ``touched`` (T,) change by ``changes``
    (K, T), not weighted.
    """
    weight = steps.equations.weight * steps.used
    normal = steps.linearised(walk.z, walk.r, torch.float64)
    jacobian = steps.model.products(torch.float64).jacobian(walk.z, weight, touched)
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
