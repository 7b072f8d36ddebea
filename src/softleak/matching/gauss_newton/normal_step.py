"""This module solves for one damped step, with the normal matrix held densely."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class NormalEquations:
    """This holds ``JᵀJ`` (n, n) and ``Jᵀr`` (n,) in float64, at one iterate."""

    matrix: Tensor
    slope: Tensor

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

    def step(self, damping: float) -> tuple[Tensor, float] | None:
        """Return the damped step (n,) and the decrease of ``‖r‖²`` that it promises.

        ``(JᵀJ + μ diag(JᵀJ)) s = Jᵀr``; the new iterate is ``z − s``. None means that the matrix
        is not positive definite at this damping.
        """
        diagonal = self.matrix.diagonal()
        scale = diagonal.clamp_min(float(diagonal.max()) * 1e-30).rsqrt()
        scaled = self.matrix * scale[:, None] * scale
        scaled.diagonal().add_(damping)
        factor, failed = torch.linalg.cholesky_ex(scaled)
        if int(failed):
            return None
        b = self.slope * scale
        s = torch.cholesky_solve(b[:, None], factor)[:, 0]
        promised = float(s @ b + damping * s.square().sum())
        return s * scale, promised
