"""This module factors the normal matrix of rows with independent errors, using its structure.

Let T be the convolution's matrix, Λ the diagonal precision of its output, and D what gradients of
the kernel see of a channel, of any channel. If δ does not move with the output, the normal matrix
is ``TᵀΛT + I ⊗ DᵀD``. Both factorisations here are approximate inverses, for conjugate gradients
on the rows themselves: one in single precision, and a cheaper one where outputs are few.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from softleak.inversion.cholesky import cholesky_in_place
from softleak.inversion.least_squares import drawn, reproducible_noise, solved
from softleak.inversion.matrix_tiles import transposed_columns
from softleak.inversion.normal_matrix import add_blocks, gradient_rows
from softleak.inversion.rows import Rows


class ApproximateInverse(Protocol):
    """This is nearly the inverse of a normal matrix (n, n) with a ridge."""

    def solve(self, right: Tensor) -> Tensor:
        """Return its product with a vector (n,)."""
        ...

    def draws(self, count: int) -> Tensor:
        """Return draws (count, n) whose covariance it is."""
        ...


def approximate_inverse(rows: Rows, ridge: Tensor) -> ApproximateInverse | None:
    """Return the cheaper factorisation, or None if it fails in its precision.

    Args:
        rows: Rows with independent errors.
        ridge: What is added to the diagonal (H·W,) of every channel.
    """
    return LowRank.of(rows, ridge) if rows.few_outputs else SinglePrecision.of(rows, ridge)


@dataclass(frozen=True, eq=False)
class SinglePrecision:
    """This is the factor of the whole matrix, divided by ``size``, in single precision."""

    factor: Tensor
    size: float

    @classmethod
    def of(cls, rows: Rows, ridge: Tensor) -> SinglePrecision | None:
        """Return the factorisation: ``TᵀΛT`` over all channels, ``DᵀD`` per channel."""
        channels, plane = len(rows.kernel[0]), len(ridge)
        size = float((rows.normal_diagonal().view(channels, plane) + ridge).max())
        normal = _forward_part(rows, size)
        seen = (gradient_rows(rows).flatten(0, 1) / math.sqrt(size)).float()
        block = seen.T @ seen
        block.diagonal().add_((ridge / size).float())
        add_blocks(normal, block.expand(channels, -1, -1))
        return cls(normal, size) if cholesky_in_place(normal) else None

    def solve(self, right: Tensor) -> Tensor:
        return solved(self.factor, (right / self.size).float()[:, None])[:, 0].double()

    def draws(self, count: int) -> Tensor:
        return drawn(self.factor, count).T.double() / math.sqrt(self.size)


@dataclass(frozen=True, eq=False)
class LowRank:
    """This is one block for all channels, and the few forward rows by Woodbury's identity.

    Attributes:
        rows: The rows.
        root: ``Λ^½`` (Co, Ho, Wo).
        block: The factor (H·W, H·W) of ``DᵀD`` with the ridge.
        inverse: The inverse (H·W, H·W) of that block.
        capacity: The factor (m, m) of ``I + Λ^½ T (I ⊗ DᵀD)⁻¹ Tᵀ Λ^½``.
    """

    rows: Rows
    root: Tensor
    block: Tensor
    inverse: Tensor
    capacity: Tensor

    @classmethod
    def of(cls, rows: Rows, ridge: Tensor) -> LowRank | None:
        """Return the factorisation of the block, and of what the forward rows add."""
        seen = gradient_rows(rows).flatten(0, 1)
        block, failed = torch.linalg.cholesky_ex(seen.T @ seen + ridge.diag())
        inverse = torch.cholesky_inverse(block)
        root = rows.weighted(torch.ones_like(rows.z)).sqrt()
        between = _between(rows, inverse).mul_(root.flatten()).mul_(root.flatten()[:, None])
        between.diagonal().add_(1)
        capacity, failed_too = torch.linalg.cholesky_ex(between)
        return None if failed or failed_too else cls(rows, root, block, inverse, capacity)

    def solve(self, right: Tensor) -> Tensor:
        return self._solved(right[None])[0]

    def draws(self, count: int) -> Tensor:
        unknowns = math.prod(self.rows.shape)
        noise = reproducible_noise((count, unknowns + self.root.numel()), self.block)
        from_gradients = noise[:, :unknowns].reshape(-1, len(self.block)) @ self.block.T
        from_outputs = noise[:, unknowns:] * self.root.flatten()
        return self._solved(from_gradients.view(count, -1) + self.rows.transposed(from_outputs))

    def _solved(self, right: Tensor) -> Tensor:
        """Return the solutions (R, n) of many right sides (R, n), by Woodbury's identity."""
        alone = self._per_channel(right)
        off = self.root * self.rows.geometry.forward(
            alone.view(-1, *self.rows.shape), self.rows.kernel
        )
        pulled = solved(self.capacity, off.flatten(1).T).T
        return alone - self._per_channel(self.rows.transposed(pulled * self.root.flatten()))

    def _per_channel(self, right: Tensor) -> Tensor:
        """Return ``(I ⊗ DᵀD)⁻¹ right`` (R, n)."""
        return (right.view(-1, len(self.inverse)) @ self.inverse).view_as(right)


def _forward_part(rows: Rows, size: float) -> Tensor:
    """Return ``TᵀΛT`` (n, n) over ``size``, in single precision.

    Many channels and few positions are multiplied; few channels and many positions are added, one
    position after the other.
    """
    outputs, channels, *taps = rows.kernel.shape
    unknowns, pairs = math.prod(rows.shape), (channels * math.prod(taps)) ** 2
    kernel = rows.kernel.float()
    weights = (rows.weighted(torch.ones_like(rows.z)) / size).float()
    if rows.z.numel() * unknowns < pairs * rows.z[0].numel():
        columns = weights.flatten().diag()
        for _ in range(2):  # Λ becomes TᵀΛ, and ΛT becomes TᵀΛT
            shaped = columns.T.reshape(*rows.z.shape, -1)
            columns = transposed_columns(rows.geometry, kernel, shaped)
        return columns
    flat = kernel.flatten(1)
    products = (flat[:, :, None] * flat[:, None]).view(outputs, -1)
    blocks = (products.T @ weights.flatten(1)).view(
        *(channels, math.prod(taps)) * 2, *rows.z[0].shape
    )
    total = torch.zeros(unknowns, unknowns, device=kernel.device)
    rows.geometry.add_local(total, blocks)
    return total


def _between(rows: Rows, inverse: Tensor) -> Tensor:
    """Return ``T (I ⊗ inverse) Tᵀ`` (m, m), the inverse (H·W, H·W) being that of every channel."""
    kernel, seen = rows.kernel.flatten(2), rows.geometry.plane  # (Co, C, k), (L, k)
    outputs, (positions, taps) = len(kernel), seen.shape
    padded = torch.nn.functional.pad(inverse, (0, 1, 0, 1))
    total = inverse.new_zeros(outputs * outputs, positions * positions)
    for tap in range(taps):
        pairs = torch.einsum("oi,pit->opt", kernel[..., tap], kernel).flatten(0, 1)
        total.addmm_(pairs, padded[seen[:, tap]][:, seen.T].transpose(0, 1).flatten(1))
    shaped = total.view(outputs, outputs, positions, positions)
    return shaped.transpose(1, 2).reshape(outputs * positions, -1)
