"""Walk downhill by Levenberg–Marquardt steps, first in float32, then in float64.

``DampedDescent`` holds a normal matrix; ``MatrixFree`` does without where it would be too large.
``FoldEscape`` leads a walk out of a wrong place, where units are on the wrong side of a fold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap
from torch.overrides import TorchFunctionMode

from softleak.matching.gauss_newton.equations import BatchFunction, ShareEquations
from softleak.matching.gauss_newton.model import (
    LinearisedShare,
    NormalEquations,
    cosine_basis,
    roughness,
)
from softleak.matching.gauss_newton.products import TangentProducts
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
    # A further step with the same matrix counts in float32 if it leaves at most this part of the
    # misfit. In float64, where matrices are dear and the solution is near, each that is not slow.
    again: float = 0.5
    repeats: int = 10  # the largest number of further steps with one matrix
    hopeless: float = math.inf  # a walk that gets stuck in float32 with a larger misfit is given up

    def __call__(
        self, equations: ShareEquations, z: Tensor, linearised: LinearisedShare, stopping: Stopping
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
        self, equations: ShareEquations, taken: Taken, found: NormalEquations,
        linearised: LinearisedShare, most: float,
    ) -> tuple[list[Taken], bool]:  # fmt: skip
        """Return a step and those that follow with the same matrix, and whether nothing is left."""
        path = [taken]
        while len(path) <= self.repeats:
            here = path[-1]
            moved = linearised.moved(found, here.z, here.r)
            further = self._step(equations, here, moved, 1)
            if further is None:
                return path, self._promises_little(here, moved)
            part = root_mean_square(further.r) / root_mean_square(here.r)
            if part > most:
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


@dataclass(frozen=True, eq=False)
class ImageLengths:
    """How long a change of the unknowns (n,) is: rough changes of images are longer.

    It is the metric of ``roughness_metric`` for every channel, applied by cosine transforms, and
    one for unknowns that are not pixels.
    """

    shape: tuple[int, ...]  # the shape (B, …) of the batch, whose entries are the first unknowns
    values: Tensor | None  # how much each frequency (H, W) counts; None means all the same

    @classmethod
    def of(cls, shape: tuple[int, ...], power: float) -> ImageLengths:
        """Measure changes of a batch by a power of the frequency."""
        return cls(shape, roughness(shape, power))

    def scaled(self, u: Tensor, factor: Callable[[Tensor], Tensor]) -> Tensor:
        """Return a change (n,), each part of it times a function of how much the part counts."""
        one = factor(torch.ones((), dtype=u.dtype))
        if self.values is None:
            return u * one
        (rows, columns), pixels = self._cosines, torch.Size(self.shape).numel()
        waves = rows @ u[:pixels].view(-1, *self.shape[2:]) @ columns.T
        images = rows.T @ (waves * factor(self.values)) @ columns
        return torch.cat([images.reshape(-1), u[pixels:] * one])

    @cached_property
    def _cosines(self) -> list[Tensor]:
        return [cosine_basis(length) for length in self.shape[2:]]


@dataclass(frozen=True, eq=False)
class DampedProducts:
    """The least squares ``‖r − J s‖² + μ uᵀ M u`` with ``u = S s``, at one iterate.

    ``S²`` is the diagonal of the normal matrix, so that ``u`` counts every unknown in units of what
    the share says about it, and ``M`` makes rough changes of an image longer.
    """

    along: Callable[[Tensor], Tensor]  # the weighted product ``J v`` (R,) with a change (n,)
    back: Callable[[Tensor], Tensor]  # the weighted product ``Jᵀ r`` (n,) with residuals (R,)
    scale: Tensor  # ``S`` (n,)
    lengths: ImageLengths  # ``M``
    damping: float  # ``μ``

    @classmethod
    def of(
        cls, equations: ShareEquations, products: TangentProducts, lengths: ImageLengths, z: Tensor,
        damping: float, scale: Tensor | None = None, probes: int = 24,
    ) -> DampedProducts:  # fmt: skip
        """Linearise the equations at ``z`` (n,), in the precision of the products."""
        weight, against = equations.weight, products.against(z)

        def along(v: Tensor) -> Tensor:
            return products.along(z, v).double() * weight

        def back(r: Tensor) -> Tensor:
            return against(r * weight).double()

        if scale is not None:
            return cls(along, back, scale, lengths, damping)
        generator = torch.Generator().manual_seed(0)
        diagonal = torch.zeros_like(z)
        for _ in range(probes):
            signs = torch.randint(0, 2, weight.shape, generator=generator).double() * 2 - 1
            diagonal += back(signs).square() / probes
        scale = diagonal.clamp_min(float(diagonal.max()) * 1e-12).sqrt()
        return cls(along, back, scale, lengths, damping)

    def carried(self, u: Tensor) -> Tensor:
        """Return what a scaled change (n,) does to the rows (R,)."""
        return self.along(u / self.scale)

    def slope(self, r: Tensor) -> Tensor:
        """Return how the scaled unknowns (n,) change the size of residuals (R,)."""
        return self.back(r) / self.scale

    def cost(self, u: Tensor) -> Tensor:
        """Return ``μ M u`` (n,)."""
        return self.damping * self.lengths.scaled(u, lambda values: values)

    def preconditioned(self, slope: Tensor) -> Tensor:
        """Return ``(1 + μ M)⁻¹`` times a slope (n,)."""
        return self.lengths.scaled(slope, lambda values: 1 / (1 + self.damping * values))


class LinearStep(NamedTuple):
    """A step ``s`` (n,) and what the linear model says is left of the residuals (R,)."""

    s: Tensor
    left: Tensor


def conjugate_step(
    problem: DampedProducts, r: Tensor, stopping: Stopping, iterations: int = 800,
    forcing: float = 1e-2,
) -> LinearStep:  # fmt: skip
    """Return a step that lowers residuals ``r`` (R,), by preconditioned conjugate gradients.

    They end when the slope has shrunk to the part ``forcing``, or sooner if the time is over. Some
    hundreds of ``iterations`` are usual, fewer where a share determines more.
    """
    u, left = torch.zeros_like(problem.scale), r
    slope = problem.slope(left)
    direction = turned = problem.preconditioned(slope)
    size = float(slope @ turned)
    goal, loss = size * forcing**2, torch.tensor([root_mean_square(r)])
    for _ in range(iterations):
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
    """Minimise the weighted misfit of a share where a normal matrix would be too large."""

    steps: int = 60  # the largest number of steps
    # Where the equations bend, a long step spoils the few directions that the share sees best, and
    # so many iterations at the new place put them right.
    mending: int = 20
    damping: Damping = field(default_factory=Damping)  # how steps are damped
    slow: float = 0.95  # a step that leaves more than this part of the misfit is a slow one
    patience: int = 5  # how many steps in a row that are slow, or lead uphill, end a precision
    precise: float = 30.0  # the misfit, in standard errors, from which on float64 takes over

    def __call__(
        self, equations: ShareEquations, z: Tensor,
        products: Callable[[torch.dtype], TangentProducts], stopping: Stopping,
    ) -> Walk:  # fmt: skip
        """Walk from unknowns ``z`` (n,) until nothing is gained, or the steps or time are used."""
        lengths = ImageLengths.of(equations.function.shape, self.damping.smoothness)
        r, damping, dtype = equations.residual(z), self.damping.first, torch.float32
        misfits, slow, count, stuck = [root_mean_square(r)], 0, 0, False
        while count < self.steps and not stopping.over and math.isfinite(misfits[-1]):
            linearised = partial(
                DampedProducts.of, equations, products(dtype), lengths, damping=damping
            )
            moved, new, promised = self._moved(equations, z, r, linearised, stopping)
            count += 1
            slow = slow + 1 if root_mean_square(new) >= self.slow * misfits[-1] else 0
            if (less := _squares(r) - _squares(new)) > 0:
                z, r = moved, new
                damping = self.damping.after(damping, less / promised)
                misfits.append(root_mean_square(r))
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
        self, equations: ShareEquations, z: Tensor, r: Tensor,
        linearised: Callable[..., DampedProducts], stopping: Stopping,
    ) -> tuple[Tensor, Tensor, float]:  # fmt: skip
        """Return where a step leads (n,), its residuals (R,), and the decrease that it promised."""
        problem = linearised(z=z)
        s, left = conjugate_step(problem, r, stopping)
        moved, promised = z - s, max(_squares(r) - _squares(left), 1e-300)
        new = equations.residual(moved)
        if _squares(r) - _squares(new) < self.damping.good * promised:
            near = linearised(z=moved, scale=problem.scale)
            moved = moved - conjugate_step(near, new, stopping, self.mending).s
            new = equations.residual(moved)
        return moved, new, promised


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
        self, descent: DampedDescent, walk: Walk, linearised: LinearisedShare, stopping: Stopping
    ) -> Walk:
        """Return the walk with what follows it, or the walk itself if no move helps."""
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

    It is ``‖P r‖² − ‖P (r + v)‖²`` (K,) for the residuals ``r`` at the end of the walk, where ``P``
    takes away what a change of the unknowns can do. The rows ``touched`` (T,) change by ``changes``
    (K, T), not weighted.
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
