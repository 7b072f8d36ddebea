"""Take damped Gauss–Newton steps without holding a Jacobian or a normal matrix."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor

from softleak.matching.gauss_newton.descent import Damping, Walk, root_mean_square
from softleak.matching.gauss_newton.equations import ShareEquations
from softleak.matching.gauss_newton.model import cosine_basis, roughness
from softleak.matching.gauss_newton.products import TangentProducts
from softleak.matching.reconstruction import Stopping


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
        cls,
        equations: ShareEquations,
        products: TangentProducts,
        lengths: ImageLengths,
        z: Tensor,
        damping: float,
        scale: Tensor | None = None,
        probes: int = 24,
        seed: int = 0,
    ) -> DampedProducts:
        """Linearise the equations at ``z`` (n,), in the precision of the products.

        Args:
            equations: what is to be fulfilled.
            products: the products with the Jacobian.
            lengths: how changes are measured.
            z: the iterate.
            damping: how much a change costs.
            scale: ``S`` (n,) of a place nearby; None means that it is estimated here.
            probes: the number of random products that estimate the diagonal.
            seed: the seed of the probes.
        """
        weight, against = equations.weight, products.against(z)

        def along(v: Tensor) -> Tensor:
            return products.along(z, v).double() * weight

        def back(r: Tensor) -> Tensor:
            return against(r * weight).double()

        if scale is not None:
            return cls(along, back, scale, lengths, damping)
        generator = torch.Generator().manual_seed(seed)
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


@dataclass(frozen=True)
class ConjugateGradients:
    """Find a step by preconditioned conjugate gradients on the least squares of a place."""

    iterations: int = 800  # at most; some hundreds are usual, fewer where a share determines more
    forcing: float = 1e-2  # it ends when the slope has shrunk to this part

    def __call__(self, problem: DampedProducts, r: Tensor, stopping: Stopping) -> LinearStep:
        """Return a step that lowers residuals ``r`` (R,), sooner if the time is over."""
        u, left = torch.zeros_like(problem.scale), r
        slope = problem.slope(left)
        direction = turned = problem.preconditioned(slope)
        size = float(slope @ turned)
        goal, loss = size * self.forcing**2, torch.tensor([root_mean_square(r)])
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
    """Minimise the weighted misfit of a share where a normal matrix would be too large."""

    steps: int = 60  # the largest number of steps
    inner: ConjugateGradients = field(default_factory=ConjugateGradients)  # how each step is found
    # how a step is mended that did not do as promised. Where the equations bend, a long step spoils
    # the few directions that the share sees best, and few iterations at the new place put them
    # right
    mending: ConjugateGradients = field(default_factory=lambda: ConjugateGradients(20))
    damping: Damping = field(default_factory=Damping)  # how steps are damped
    slow: float = 0.95  # a step that leaves more than this part of the misfit is a slow one
    patience: int = 5  # how many steps in a row that are slow, or lead uphill, end a precision
    precise: float = 30.0  # the misfit, in standard errors, from which on float64 takes over

    def __call__(
        self,
        equations: ShareEquations,
        z: Tensor,
        products: Callable[[torch.dtype], TangentProducts],
        stopping: Stopping,
    ) -> Walk:
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
            if (less := _less(r, new)) > 0:
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
