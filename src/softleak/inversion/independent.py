"""Rows with independent errors and a δ that does not bend: their normal matrix has a structure.

With ``T`` for the convolution, ``Λ`` for its weights, and ``D`` for what weight gradients see of
a channel, of any channel, it is ``TᵀΛT + I ⊗ DᵀD``. Two factorisations of it serve to descend on
the rows themselves: one in single precision, and a cheaper one where outputs are few.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from softleak.inversion.least_squares import DRAWS, drawn, noise_like, solved
from softleak.inversion.rows import Rows, add_blocks


class Near(Protocol):
    """About the inverse of a normal matrix (n, n) with a ridge."""

    def solve(self, right: Tensor) -> Tensor:
        """Its product with a vector (n,)."""
        ...

    def draws(self) -> Tensor:
        """(DRAWS, n) draws with it for a covariance."""
        ...


def near(rows: Rows, ridge: Tensor) -> Near | None:
    """The cheaper factorisation, if there is one in this precision, with a ridge (H·W,)."""
    few = 2 * rows.z.numel() <= math.prod(rows.shape)
    return LowRank.of(rows, ridge) if few else Single.of(rows, ridge)


@dataclass(frozen=True, eq=False)
class Single:
    """The matrix as it is, over ``size``, in single precision."""

    factor: Tensor
    size: float

    @classmethod
    def of(cls, rows: Rows, ridge: Tensor) -> Single | None:
        """Local blocks from ``T``, and one of ``DᵀD`` for each channel."""
        channels, plane = len(rows.kernel[0]), len(ridge)
        size = float((rows.diagonal().view(channels, plane) + ridge).max())
        normal = torch.zeros(channels * plane, channels * plane, device=ridge.device)
        rows.geometry.add_local(normal, _local(rows, size))
        seen = (rows.plane().flatten(0, 1) / math.sqrt(size)).float()
        block = seen.T @ seen
        block.diagonal().add_((ridge / size).float())
        add_blocks(normal, block.expand(channels, -1, -1))
        factor, failed = torch.linalg.cholesky_ex(normal)
        return None if failed else cls(factor, size)

    def solve(self, right: Tensor) -> Tensor:
        return solved(self.factor, (right / self.size).float()[:, None])[:, 0].double()

    def draws(self) -> Tensor:
        return drawn(self.factor).T.double() / math.sqrt(self.size)


@dataclass(frozen=True, eq=False)
class LowRank:
    """One block for every channel, and by Woodbury's identity the few forward rows."""

    rows: Rows
    root: Tensor  # (Co, Ho, Wo): Λ^½
    block: Tensor  # (H·W, H·W): factor of DᵀD and the ridge
    inverse: Tensor
    capacity: Tensor  # factor of I + Λ^½ T (I ⊗ DᵀD)⁻¹ Tᵀ Λ^½

    @classmethod
    def of(cls, rows: Rows, ridge: Tensor) -> LowRank | None:
        """Factor the block, then what the forward rows add."""
        seen = rows.plane().flatten(0, 1)
        block, failed = torch.linalg.cholesky_ex(seen.T @ seen + ridge.diag())
        inverse = torch.cholesky_inverse(block)
        root = rows.weighted(torch.ones_like(rows.z)).sqrt()
        between = _between(rows, inverse).mul_(root.flatten()).mul_(root.flatten()[:, None])
        between.diagonal().add_(1)
        capacity, failed_too = torch.linalg.cholesky_ex(between)
        return None if failed or failed_too else cls(rows, root, block, inverse, capacity)

    def solve(self, right: Tensor) -> Tensor:
        return self._solved(right[None])[0]

    def draws(self) -> Tensor:
        unknowns = math.prod(self.rows.shape)
        noise = noise_like((DRAWS, unknowns + self.root.numel()), self.block)
        seen = noise[:, :unknowns].reshape(-1, len(self.block)) @ self.block.T
        told = noise[:, unknowns:] * self.root.flatten()
        return self._solved(seen.view(DRAWS, -1) + self.rows.transposed(told))

    def _solved(self, right: Tensor) -> Tensor:
        """Of many right sides (R, n)."""
        alone = self._each(right)
        off = self.root * self.rows.geometry.forward(
            alone.view(-1, *self.rows.shape), self.rows.kernel
        )
        pulled = solved(self.capacity, off.flatten(1).T).T
        return alone - self._each(self.rows.transposed(pulled * self.root.flatten()))

    def _each(self, right: Tensor) -> Tensor:
        return (right.view(-1, len(self.inverse)) @ self.inverse).view_as(right)


def _local(rows: Rows, size: float) -> Tensor:
    """(Ci, k, Ci, k, Ho, Wo): what each position adds to ``TᵀΛT`` over ``size``."""
    outputs, channels = rows.kernel.shape[:2]
    kernel = rows.kernel.flatten(1).float()
    pairs = kernel[:, :, None] * kernel[:, None]
    weights = (rows.weighted(torch.ones_like(rows.z)) / size).flatten(1).float()
    blocks = pairs.view(outputs, -1).T @ weights
    return blocks.view(*(channels, kernel.shape[1] // channels) * 2, *rows.z.shape[1:])


def _between(rows: Rows, inverse: Tensor) -> Tensor:
    """``T (I ⊗ inverse) Tᵀ`` (m, m), the inverse (H·W, H·W) being that of every channel."""
    kernel, seen = rows.kernel.flatten(2), rows.geometry.plane  # (Co, Ci, k), (L, k)
    outputs, (positions, taps) = len(kernel), seen.shape
    padded = torch.nn.functional.pad(inverse, (0, 1, 0, 1))
    total = inverse.new_zeros(outputs * outputs, positions * positions)
    for tap in range(taps):
        pairs = torch.einsum("oi,pit->opt", kernel[..., tap], kernel).flatten(0, 1)
        total.addmm_(pairs, padded[seen[:, tap]][:, seen.T].transpose(0, 1).flatten(1))
    shaped = total.view(outputs, outputs, positions, positions)
    return shaped.transpose(1, 2).reshape(outputs * positions, -1)
