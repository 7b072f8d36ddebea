"""The equations of a convolution's input, their normal matrix, and its approximate inverses.

Let T be the convolution's matrix, Λ the diagonal precision of its output, and D what gradients of
the kernel see of a channel, of any channel. If δ does not move with the output, the normal matrix
is ``TᵀΛT + I ⊗ DᵀD``. Its approximate inverses are for conjugate gradients on the rows themselves:
one is a factorisation in single precision, the other is cheaper where outputs are few.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softleak.core.errors import ModelError
from softleak.numerics.least_squares import (
    TINY,
    cholesky_in_place,
    conjugate_gradients,
    drawn,
    reproducible_noise,
    solved,
)


@dataclass(frozen=True, eq=False)
class Geometry:
    """Where a convolution looks."""

    kernel: tuple[int, int]  # the kernel's size (kh, kw)
    stride: tuple[int, int]  # the step between positions, down and across
    padding: tuple[int, int]  # rows and columns of zeros on either side of the input
    dilation: tuple[int, int]  # the distance between taps, down and across
    size: tuple[int, int]  # the size (H, W) of the input
    plane: Tensor  # the input entries (L, k) that each position sees, H·W standing for padding

    @classmethod
    def of(cls, layer: nn.Conv2d, size: tuple[int, int]) -> Geometry:
        """Return the geometry of a layer with zero padding, for inputs of one size (H, W)."""
        padding = padding_of(layer)
        if padding is None:
            raise ModelError(
                f"expected the same padding on both sides, got {layer.padding!r}; "
                "give the padding in numbers"
            )
        kernel, stride, dilation = (
            (a, b) for a, b in (layer.kernel_size, layer.stride, layer.dilation)
        )
        count = math.prod(size)
        index = torch.arange(1, count + 1, dtype=torch.double, device=layer.weight.device)
        seen = F.unfold(index.view(1, 1, *size), kernel, dilation, padding, stride)
        plane = seen[0].T.long() - 1
        return cls(kernel, stride, padding, dilation, size, torch.where(plane < 0, count, plane))

    def forward(self, x: Tensor, kernel: Tensor, groups: int = 1) -> Tensor:
        """Return ``K ∗ x`` (N, Co, Ho, Wo) of a batch of inputs (N, C, H, W)."""
        return F.conv2d(x, kernel, None, self.stride, self.padding, self.dilation, groups)

    def transposed(self, out: Tensor, kernel: Tensor, groups: int = 1) -> Tensor:
        """Return the transpose of ``forward`` (N, C, H, W) of outputs (N, Co, Ho, Wo)."""
        shape = (len(out), kernel.shape[1] * groups, *self.size)
        found: Tensor = torch.ops.aten.convolution_backward(
            out, out.new_empty(1).expand(shape), kernel, None, self.stride, self.padding,
            self.dilation, False, [0, 0], groups, [True, False, False],
        )[0]  # fmt: skip
        return found

    def patches(self, x: Tensor) -> Tensor:
        """Return what each position sees of an input (C, H, W), as (C·k, L)."""
        seen: Tensor = F.unfold(x[None], self.kernel, self.dilation, self.padding, self.stride)
        return seen[0]

    def gathered(self, patches: Tensor) -> Tensor:
        """Return the transpose of ``patches``: the sum of (C·k, L) over positions, as (C, H, W)."""
        found: Tensor = F.fold(
            patches[None], self.size, self.kernel, self.dilation, self.padding, self.stride
        )
        return found[0]

    def add_local(self, matrix: Tensor, blocks: Tensor) -> None:
        """Add to a matrix (n, n), in place, what each position adds to the entries that it sees.

        The matrix is over the n = C·H·W entries of the input; ``blocks`` are what each position
        adds to each pair of entries: (C, k, C, k, L).
        """
        area = math.prod(self.size)
        shaped = matrix.view(len(blocks), area, len(blocks), area)
        for a, b in product(range(blocks.shape[1]), repeat=2):
            one, other = self.plane[:, a], self.plane[:, b]
            seen = (one < area) & (other < area)  # no two positions see the same pair there
            shaped[:, one[seen], :, other[seen]] += blocks[:, a, :, b, seen].permute(2, 0, 1)


def padding_of(layer: nn.Conv2d) -> tuple[int, int] | None:
    """Return the rows and columns of zeros on either side, or None if the two sides differ."""
    match layer.padding:
        case (int(rows), int(columns)):
            return rows, columns
        case "valid":
            return 0, 0
        case _:
            extra = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
            return None if any(e % 2 for e in extra) else (extra[0] // 2, extra[1] // 2)


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one group of a convolution."""

    geometry: Geometry  # where the convolution looks
    kernel: Tensor  # the kernel K (Co, C, kh, kw)
    z: Tensor  # the output without the bias (Co, Ho, Wo)
    z_error: Tensor  # its standard errors (Co, Ho, Wo), infinite where a row says nothing
    delta: Tensor  # the derivative ``δ = ∂L/∂z`` (Co, Ho, Wo)
    curvature: Tensor  # how fast δ moves with z, entry by entry (Co, Ho, Wo)
    # The gradients of kernel and bias (Co, C·k + 1). The last column belongs to the bias, as if
    # it were the weight of a constant one.
    g: Tensor
    # Their standard errors: the same in all of a row but the last column, which is infinite if
    # there is no gradient of the bias.
    g_error: Tensor
    # The inverse covariance (m, m) of z, if its errors are correlated.
    precision: Tensor | None = None
    # How many independent measurements ``precision`` stands for; None stands for m.
    measurements: int | None = None
    # How large inputs are expected to be at most. It acts through a ridge ``1/prior_size²`` in
    # directions that no row sees.
    prior_size: float = math.inf

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.kernel.shape[1], *self.geometry.size)

    @property
    def count(self) -> int:
        """Return the number of rows whose error is finite."""
        forward = int(self.z_error.isfinite().sum())
        if self.precision is not None:
            forward = self.z.numel() if self.measurements is None else self.measurements
        return forward + int(self.g_error.isfinite().sum())

    @property
    def few_outputs(self) -> bool:
        """Tell whether the input has at least twice as many entries as the output."""
        return 2 * self.z.numel() <= math.prod(self.shape)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``K ∗ x`` (Co, Ho, Wo) of an input (n,)."""
        return self.geometry.forward(x.view(1, *self.shape), self.kernel)[0]

    def transposed(self, rows: Tensor) -> Tensor:
        """Return ``rows T`` (R, n) for rows (R, m), T being the convolution's matrix (m, n)."""
        shaped = rows.reshape(-1, *self.z.shape)
        return self.geometry.transposed(shaped, self.kernel.to(rows.dtype)).flatten(1)

    def patches(self, x: Tensor) -> Tensor:
        """Return what each position sees of an input (n,), and the constant one: (C·k + 1, L)."""
        patches = self.geometry.patches(x.view(self.shape))
        return torch.cat([patches, torch.ones_like(patches[:1])])

    def misfits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return how far an input (n,) misses the rows.

        These are ``z − K ∗ x`` (Co, Ho, Wo), and the misfits of the gradients (Co, C·k + 1) in
        units of their errors.
        """
        off = self.z - self.forward(x)
        delta = (self.delta - self.curvature * off).flatten(1)
        return off, (self.g - delta @ self.patches(x).T) / self.g_error

    def weighted(self, off: Tensor) -> Tensor:
        """Return misfits (Co, Ho, Wo) of the forward rows times their precision."""
        if self.precision is not None:
            return (self.precision @ off.flatten()).view_as(off)
        return off * self.z_error.square().clamp_min(TINY).reciprocal()

    def squared_misfit(self, x: Tensor) -> float:
        """Return the sum of all rows' squared misfits, in units of their errors."""
        off, gradient = self.misfits(x)
        return float((off * self.weighted(off)).sum() + gradient.square().sum())

    def slope(self, x: Tensor, around: Tensor) -> Tensor:
        """Return ``Aᵀ(b − A x)`` (n,) over all rows and the ridge.

        A is the derivative of the rows at a nearby input ``around`` (n,).
        """
        return self._pulled(*self.misfits(x), around) - x / self.prior_size**2

    def normal_product(self, v: Tensor, around: Tensor) -> Tensor:
        """Return ``AᵀA v`` (n,) over all rows and the ridge, A being as in ``slope``."""
        moved = self.forward(v)
        direct = self.delta.flatten(1) @ self.geometry.patches(v.view(self.shape)).T
        gradient = F.pad(direct, (0, 1))
        if self.curvature.any():
            gradient += (self.curvature * moved).flatten(1) @ self.patches(around).T
        gradient /= self.g_error
        return self._pulled(moved, gradient, around) + v / self.prior_size**2

    def _pulled(self, off: Tensor, gradient: Tensor, around: Tensor) -> Tensor:
        """Return ``Aᵀ`` times misfits (n,): of the output, and of gradients in their errors."""
        pulled = gradient / self.g_error
        outputs = self.weighted(off)
        if self.curvature.any():
            through_delta = (pulled @ self.patches(around)).view_as(off)
            outputs = outputs + self.curvature * through_delta
        back = self.geometry.transposed(outputs[None], self.kernel)[0]
        direct = self.geometry.gathered(pulled[:, :-1].T @ self.delta.flatten(1))
        return (back + direct).flatten()

    def rough_solution(self, steps: int) -> Tensor:
        """Return an input (n,) near the solution, by a few steps of conjugate gradients."""
        still = torch.zeros_like(self.curvature)
        rigid = replace(self, curvature=still, precision=None)
        zero = self.z.new_zeros(math.prod(self.shape))
        right = rigid.slope(zero, zero)
        diagonal = rigid.normal_diagonal()
        return conjugate_gradients(
            lambda v: rigid.normal_product(v, zero), right, lambda r: r / diagonal, steps
        )

    def normal_diagonal(self) -> Tensor:
        """Return the diagonal (n,) of the normal matrix without its ridge.

        δ is taken not to move with z, and all errors as independent.
        """
        weights = self.weighted(torch.ones_like(self.z))
        forward = self.geometry.transposed(weights[None], self.kernel.square())[0]
        strength = (self.delta.flatten(1) / self.g_error[:, :1]).square().sum(0)
        taps = strength.expand(self.kernel[0].numel(), -1)
        return (forward + self.geometry.gathered(taps)).flatten().clamp_min(TINY)


def normal_matrix(rows: Rows, around: Tensor) -> Tensor:
    """Return the normal matrix (n, n) of the rows, linearised around an input (n,).

    Let T be the convolution's matrix (m, n) and Λ the precision of its output. Gradients see x
    directly by a matrix B, alike for all channels, and through δ by ``M T``. The matrix is
    ``(B + M T)ᵀ(B + M T) + TᵀΛT``, and the ridge.
    """
    curvature = rows.curvature.flatten(1)[:, None]
    through = curvature * rows.patches(around) / rows.g_error[..., None]
    direct = gradient_rows(rows)
    precision = rows.precision
    if precision is None:
        precision = rows.weighted(torch.ones_like(rows.z)).flatten().diag()
    inner = precision / 2
    add_blocks(inner, through.transpose(1, 2) @ through / 2)
    half = rows.transposed(inner)  # (m, n)
    per_channel = through[:, :-1].view(len(direct), rows.shape[0], -1, through.shape[-1])
    half += torch.einsum("ockl,okp->olcp", per_channel, direct).reshape_as(half)  # MᵀB
    total = rows.transposed(half.T)
    total += total.T.contiguous()  # a third of the time of adding the transpose as it lies
    flat = direct.flatten(0, 1)
    add_blocks(total, (flat.T @ flat).expand(rows.shape[0], -1, -1))
    total.diagonal().add_(rows.prior_size**-2)
    return total


def gradient_rows(rows: Rows) -> Tensor:
    """Return what gradients of the kernel see of one input channel, of any: (Co, k, H·W).

    Each is the sum of δ, in units of the gradient's error, over the positions whose tap sees the
    pixel.
    """
    seen = rows.geometry.plane.T  # (k, L)
    scaled = rows.delta.flatten(1) / rows.g_error[:, :1]
    outputs = scaled[:, None].expand(-1, len(seen), -1)
    size = rows.geometry.size[0] * rows.geometry.size[1]
    found = rows.delta.new_zeros(len(scaled), len(seen), size + 1)
    return found.scatter_add_(2, seen.expand(len(scaled), -1, -1), outputs)[..., :-1]


def add_blocks(matrix: Tensor, blocks: Tensor) -> None:
    """Add square ``blocks`` (B, s, s) to the diagonal of a matrix (B·s, B·s), in place."""
    count, size, _ = blocks.shape
    every = matrix.view(count, size, count, size).diagonal(dim1=0, dim2=2)  # (s, s, B)
    every += blocks.permute(1, 2, 0)


class ApproximateInverse(NamedTuple):
    """Nearly the inverse of a normal matrix (n, n) with a ridge."""

    solve: Callable[[Tensor], Tensor]  # its product with a vector (n,)
    draws: Callable[[int], Tensor]  # as many draws (count, n) whose covariance it is


def approximate_inverse(rows: Rows, ridge: Tensor) -> ApproximateInverse | None:
    """Return the cheaper factorisation with this ``ridge`` (H·W,), or None if it fails."""
    return low_rank(rows, ridge) if rows.few_outputs else single_precision(rows, ridge)


def single_precision(rows: Rows, ridge: Tensor) -> ApproximateInverse | None:
    """Factor the whole matrix in single precision: ``TᵀΛT`` and, per channel, ``DᵀD``."""
    channels, plane = len(rows.kernel[0]), len(ridge)
    size = float((rows.normal_diagonal().view(channels, plane) + ridge).max())
    factor = _forward_part(rows, size)
    seen = (gradient_rows(rows).flatten(0, 1) / math.sqrt(size)).float()
    block = seen.T @ seen
    block.diagonal().add_((ridge / size).float())
    add_blocks(factor, block.expand(channels, -1, -1))
    if not cholesky_in_place(factor):
        return None
    return ApproximateInverse(
        lambda right: solved(factor, (right / size).float()[:, None])[:, 0].double(),
        lambda count: drawn(factor, count).T.double() / math.sqrt(size),
    )


def low_rank(rows: Rows, ridge: Tensor) -> ApproximateInverse | None:
    """Factor one block for all channels, and the few forward rows by Woodbury's identity.

    The block is ``DᵀD`` with the ridge, and what the forward rows add has the capacity
    ``I + Λ^½ T (I ⊗ DᵀD)⁻¹ Tᵀ Λ^½`` (m, m).
    """
    seen = gradient_rows(rows).flatten(0, 1)
    block, failed = torch.linalg.cholesky_ex(seen.T @ seen + ridge.diag())
    inverse = torch.cholesky_inverse(block)
    root = rows.weighted(torch.ones_like(rows.z)).sqrt()  # Λ^½ (Co, Ho, Wo)

    def per_channel(right: Tensor) -> Tensor:  # (I ⊗ DᵀD)⁻¹ right
        return (right.view(-1, len(inverse)) @ inverse).view_as(right)

    def forward(right: Tensor) -> Tensor:  # Λ^½ T right
        made = rows.geometry.forward(right.view(-1, *rows.shape), rows.kernel)
        return (root * made).flatten(1)

    capacity = forward(per_channel(rows.transposed(root.flatten().diag())))
    capacity.diagonal().add_(1)
    capacity, failed_too = torch.linalg.cholesky_ex(capacity)
    if failed or failed_too:
        return None

    def solve(right: Tensor) -> Tensor:  # many right sides (R, n)
        alone = per_channel(right)
        pulled = solved(capacity, forward(alone).T).T
        return alone - per_channel(rows.transposed(pulled * root.flatten()))

    def draws(count: int) -> Tensor:
        unknowns = math.prod(rows.shape)
        noise = reproducible_noise((count, unknowns + root.numel()), block)
        from_gradients = noise[:, :unknowns].reshape(-1, len(block)) @ block.T
        from_outputs = noise[:, unknowns:] * root.flatten()
        return solve(from_gradients.view(count, -1) + rows.transposed(from_outputs))

    return ApproximateInverse(lambda right: solve(right[None])[0], draws)


def _forward_part(rows: Rows, size: float) -> Tensor:
    """Return ``TᵀΛT`` (n, n) over ``size``, in single precision.

    Many channels and few positions are multiplied; few channels and many positions are added, one
    position after the other.
    """
    channels, taps = rows.shape[0], math.prod(rows.geometry.kernel)
    unknowns, pairs = math.prod(rows.shape), (channels * taps) ** 2
    weights = (rows.weighted(torch.ones_like(rows.z)) / size).float()
    if rows.z.numel() * unknowns < pairs * rows.z[0].numel():
        return rows.transposed(rows.transposed(weights.flatten().diag()).T)
    flat = rows.kernel.float().flatten(1)
    products = (flat[:, :, None] * flat[:, None]).flatten(1)
    blocks = (products.T @ weights.flatten(1)).view(channels, taps, channels, taps, -1)
    total = weights.new_zeros(unknowns, unknowns)
    rows.geometry.add_local(total, blocks)
    return total
