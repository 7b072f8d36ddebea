"""This module takes damped Gauss–Newton steps without holding a Jacobian or a normal matrix."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from softleak.matching.gauss_newton.damped_descent import Walk
from softleak.matching.gauss_newton.share_equations import ShareEquations
from softleak.matching.gauss_newton.step_damping import Damping
from softleak.matching.gauss_newton.tangent_products import TangentProducts
from softleak.matching.stopping import Stopping


@dataclass(frozen=True)
class MatrixFree:
    """This finds each step by preconditioned conjugate gradients on the normal equations.

    Attributes:
        steps: the largest number of steps.
        inner: the largest number of iterations for one step.
        forcing: an iteration ends when the residual of the step's equations has shrunk so far.
        probes: the number of random products that estimate the diagonal of the normal matrix,
            which is the preconditioner.
        damping: how steps are damped.
        slow: a step that leaves more than this part of the misfit ends the walk.
        seed: the seed of the probes.
    """

    steps: int = 40
    inner: int = 60
    forcing: float = 1e-2
    probes: int = 24
    damping: Damping = field(default_factory=Damping)
    slow: float = 0.9995
    seed: int = 0

    def __call__(
        self,
        equations: ShareEquations,
        z: Tensor,
        products: Callable[[torch.dtype], TangentProducts],
        stopping: Stopping,
    ) -> Walk:
        """Walk from unknowns ``z`` (n,) until nothing is gained, or the steps or time are used."""
        r = equations.residual(z)
        misfits, damping, count, stuck = [_rms(r)], self.damping.first, 0, False
        dtype = torch.float32
        while count < self.steps and not stopping.over and math.isfinite(misfits[-1]):
            taken = self._step(equations, z, r, products(dtype), damping)
            count += 1
            damping = taken[2]
            if float(taken[1].square().sum()) < float(r.square().sum()):
                z, r = taken[0], taken[1]
                misfits.append(_rms(r))
                stuck = misfits[-1] > self.slow * misfits[-2]
            else:
                stuck = damping > 1 / self.damping.first
            stopping.tell(1, torch.tensor([misfits[-1]]), 1)
            if stuck and dtype is torch.float64:
                break
            if stuck:
                dtype, stuck, damping = torch.float64, False, self.damping.first
        return Walk(z, r, tuple(misfits), None, stuck, count)

    def _step(
        self, equations: ShareEquations, z: Tensor, r: Tensor, own: TangentProducts, damping: float
    ) -> tuple[Tensor, Tensor, float]:
        """Return the next iterate, its residuals and the next damping, were the step taken."""
        weight = equations.weight
        back = own.against(z)
        slope = back(weight * r).double()
        generator = torch.Generator().manual_seed(self.seed)
        diagonal = torch.zeros_like(slope)
        for _ in range(self.probes):
            signs = torch.randint(0, 2, r.shape, generator=generator).double() * 2 - 1
            diagonal += back(weight * signs).double().square() / self.probes
        diagonal = diagonal.clamp_min(float(diagonal.max()) * 1e-12)

        def product(v: Tensor) -> Tensor:
            through = own.along(z, v).double() * weight.square()
            return back(through).double() + damping * diagonal * v

        s = self._conjugate(product, slope, diagonal * (1 + damping))
        new = equations.residual(z - s)
        less = float(r.square().sum()) - float(new.square().sum())
        promised = float(2 * s @ slope - s @ product(s) + damping * (diagonal * s) @ s)
        if less <= 0:
            return z - s, new, damping * self.damping.raised
        return z - s, new, self.damping.after(damping, less / max(promised, 1e-300))

    def _conjugate(
        self, product: Callable[[Tensor], Tensor], b: Tensor, preconditioner: Tensor
    ) -> Tensor:
        """Return an approximate solution (n,) of ``A s = b``."""
        s, left = torch.zeros_like(b), b.clone()
        turned = left / preconditioner
        direction, size = turned, float(left @ turned)
        goal = size * self.forcing**2
        for _ in range(self.inner):
            image = product(direction)
            curvature = float(direction @ image)
            if curvature <= 0 or size <= goal:
                break
            along = size / curvature
            s, left = s + along * direction, left - along * image
            turned = left / preconditioner
            new = float(left @ turned)
            direction, size = turned + (new / size) * direction, new
        return s


def _rms(r: Tensor) -> float:
    return float(r.square().mean().sqrt())
