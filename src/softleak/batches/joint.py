"""This module solves for all samples of a batch together (§9).

The unknowns are the ``b_i`` of all samples, the coefficients of their labels and, if it is unknown,
the scale. ``A = B⁻ᵀ`` couples the samples, so ``R`` samples have ``R (C − 1)`` equations for ``R²``
unknowns and the coefficients. Equations are weighed by their rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.batches.head_space import HeadSpace
from softleak.batches.levenberg import LevenbergSettings, minimise
from softleak.batches.one_sample import SamplePoints
from softleak.batches.rounding import as_sent, entry_errors, equation_errors
from softleak.batches.supports import Supports

POLISH = LevenbergSettings(iterations=12, damping=1e-6, checkpoints=())
THOROUGH = LevenbergSettings(iterations=100, damping=1e-6, checkpoints=())
REWEIGHTED = 3  # how often equations are weighed anew
FAR_OFF = 1e4  # beyond so many standard errors, weighing anew does not help


@dataclass(frozen=True, eq=False)
class JointSystem:
    """This is the system of all samples, each on its own flat of labels.

    Attributes:
        space: the factors of the head's gradient.
        supports: the flat of each sample, in their order.
        errors: (R, C) the standard error of every equation.
        scaled: whether the scale is known. Otherwise the logarithm of ``a·b`` is an unknown.
    """

    space: HeadSpace
    supports: Supports
    errors: Tensor
    scaled: bool = True

    def unpack(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``b`` (R, R), the coefficients (R, K) and ``a·b`` of unknowns (U,)."""
        R, K = self.space.rank, self.supports.unknowns
        scale = x.new_ones(()) if self.scaled else x[-1].exp()
        return x[: R * R].reshape(R, R), x[R * R : R * (R + K)].reshape(R, K), scale

    def point(self, x: Tensor) -> SamplePoints:
        """Return the samples of unknowns (U,)."""
        b, c, scale = self.unpack(x)
        a = scale * torch.linalg.inv_ex(b)[0].mT
        p = torch.softmax(b @ self.space.logit_map.T + self.space.offset, -1)
        label = self.supports.origin + (self.supports.directions @ c[..., None])[..., 0]
        return SamplePoints(a, b, label, p)

    def signal(self, x: Tensor) -> float:
        """Return the root mean square of the differences ``δ``, in standard errors.

        Where the scale is an unknown, a scale of zero with endless features fits any gradient: all
        differences vanish, and the errors of the logits grow with the features. A known scale
        leaves no such way out. Where rows are levelled, a faint sample with the feature of another
        fits as well, with errors beyond its own size: there the least sample counts.
        """
        if self.scaled and not self.space.is_levelled:
            return math.inf
        told = (self.point(x).a @ self.space.spread.T / self.errors).square()
        told = told.mean(-1).amin() if self.space.is_levelled else told.mean()
        return float(told.sqrt())

    def values(self, x: Tensor, kind: Tensor) -> Tensor:
        """Return the weighed residuals (1, E) of unknowns (1, U)."""
        return self._residuals(self.point(x[0]))[None]

    def _residuals(self, at: SamplePoints) -> Tensor:
        rest = ((at.p - at.label - at.a @ self.space.spread.T) / self.errors).flatten()
        if self.space.constraint is None:
            return rest
        told = (at.b @ self.space.constraint - 1) / self._constraint_errors(at.b)
        return torch.cat([rest, told])

    def _constraint_errors(self, b: Tensor) -> Tensor:
        """Return the standard error (R,) of the further feature, which is one."""
        return torch.mul(1 + b.norm(dim=-1) * self.space.S[0], self.space.relative)

    def jacobian(self, x: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
        """Return the residuals (1, E) and their derivatives (1, E, U)."""
        at, R, C = self.point(x[0]), self.space.rank, self.space.classes
        M, U = self.space.logit_map, self.space.spread
        K = self.supports.unknowns
        # dA = −A dBᵀ A / scale: the a of one sample moves with the b of every other.
        Ua = (at.a @ U.T).mT / self.unpack(x[0])[2]  # (C, R): column j is what moves with b_j
        J = Ua[None, :, :, None] * at.a[:, None, None, :]
        own = at.p[..., None] * (M - (at.p @ M)[:, None, :])
        i = torch.arange(R, device=x.device)
        J[i, :, i, :] += own
        blocks = [J.reshape(R * C, R * R)]
        labels = x.new_zeros(R, C, R, K)
        labels[i, :, i, :] = -self.supports.directions
        blocks.append(labels.reshape(R * C, R * K))
        if not self.scaled:
            blocks.append(-(at.a @ U.T).reshape(R * C, 1))
        J = torch.cat(blocks, 1) / self.errors.reshape(-1, 1)
        constraint = self.space.constraint
        if constraint is not None:
            rows = x.new_zeros(R, J.shape[1])
            view = rows[:, : R * R].reshape(R, R, R)
            view[i, i] = constraint / self._constraint_errors(at.b)[:, None]
            rows[:, : R * R] = view.reshape(R, R * R)
            J = torch.cat([J, rows])
        return self._residuals(at)[None], J[None]


def polish(
    space: HeadSpace,
    supports: Supports,
    found: SamplePoints,
    *,
    scaled: bool = True,
    steps: LevenbergSettings = POLISH,
) -> tuple[JointSystem, Tensor]:
    """Solve for all samples together from where each was found; return the system and its point."""
    T, label = supports.directions, found.p - found.a @ space.spread.T
    c = torch.linalg.pinv(T) @ (label - supports.origin)[..., None]
    parts = [found.b.flatten(), c.flatten()]
    if not scaled:
        parts.append((found.a * found.b).sum(-1).mean().clamp_min(1e-12).log()[None])
    x = torch.cat(parts)[None]
    system = JointSystem(space, supports, torch.ones_like(found.p), scaled)
    kind = torch.zeros(1, dtype=torch.long)
    at = system.point(x[0])
    for _ in range(REWEIGHTED):
        n = entry_errors(space, as_sent(space, at), space.divided(at.b))
        errors = equation_errors(space, n, at.a, at.b, at.p)
        system = replace(system, errors=errors)
        x, cost, _ = minimise(system, x, kind, steps)
        at = system.point(x[0])
        if float(cost[0]) > at.p.numel() * FAR_OFF**2:
            break
    return system, x[0]
