"""This module solves for one damped step, with the normal matrix held densely."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class NormalEquations:
    """This holds ``JᵀJ`` (n, n) and ``Jᵀr`` (n,) in float64, at one iterate.

    Attributes:
        matrix: ``JᵀJ``.
        slope: ``Jᵀr``.
        metric: how long a change of one channel is, (HW, HW), if the first unknowns are images;
            None means that every unknown is measured by its own entry of the diagonal.
        pixels: how many unknowns are pixels.
    """

    matrix: Tensor
    slope: Tensor
    metric: Tensor | None = None
    pixels: int = 0

    @classmethod
    def of(cls, jacobian: Tensor, r: Tensor, blocks: int = 6) -> NormalEquations:
        """Multiply a transposed Jacobian (n, R) with itself and with residuals (R,).

        Only the blocks on and below the diagonal are multiplied, which spares nearly half.
        """
        n = len(jacobian)
        matrix = jacobian.new_empty(n, n, dtype=torch.double)
        edges = [round(n * k / blocks) for k in range(blocks + 1)]
        for low, high in itertools.pairwise(edges):
            found = (jacobian[low:high] @ jacobian[:high].T).double()
            matrix[low:high, :high] = found
            matrix[:high, low:high] = found.T
        return cls(matrix, (jacobian @ r.to(jacobian.dtype)).double())

    def measured_by(self, metric: Tensor | None, pixels: int) -> NormalEquations:
        """Return the same equations, their steps damped by the metric (HW, HW) of a channel."""
        return replace(self, metric=metric, pixels=pixels)

    def step(self, damping: float) -> tuple[Tensor, float] | None:
        """Return the damped step (n,) and the decrease of ``‖r‖²`` that it promises.

        ``(JᵀJ + μ M) s = Jᵀr`` with the lengths ``M``; the new iterate is ``z − s``. None means
        that the matrix is not positive definite at this damping.
        """
        damped = self._damped(damping)
        scale = damped.diagonal().rsqrt()
        factor, failed = torch.linalg.cholesky_ex(damped * scale[:, None] * scale)
        if int(failed):
            return None
        s = torch.cholesky_solve((self.slope * scale)[:, None], factor)[:, 0] * scale
        promised = float(2 * s @ self.slope - s @ (self.matrix @ s))
        return s, promised

    def _damped(self, damping: float) -> Tensor:
        """Return ``JᵀJ + μ M`` (n, n)."""
        diagonal = self.matrix.diagonal()
        lengths = damping * diagonal.clamp_min(float(diagonal.max()) * 1e-30)
        damped = self.matrix.clone()
        if self.metric is None:
            damped.diagonal().add_(lengths)
            return damped
        damped.diagonal()[self.pixels :].add_(lengths[self.pixels :])
        own, size = self.metric * lengths[: self.pixels].mean(), len(self.metric)
        for begin in range(0, self.pixels, size):
            damped[begin : begin + size, begin : begin + size] += own
        return damped
