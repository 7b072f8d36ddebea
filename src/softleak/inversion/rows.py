"""The rows a convolution's input has to satisfy, weighted: forward, weight and bias gradient.

K ∗ x = z                    z known, with independent errors or a precision matrix
∂L/∂K = δ(x) ⋆ x             δ(x) = δ + bend · (K ∗ x − z)
∂L/∂b = Σ δ(x)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.inversion.geometry import Geometry
from softleak.inversion.least_squares import descend
from softleak.inversion.state import TINY

ROUGH = 30  # steps to a point around which products of errors may be neglected


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one group: kernel (Co, Ci, kh, kw), outputs (Co, Ho, Wo), gradients (Co, Ci·k+1).

    The last column of ``g`` belongs to the bias, as if it were the weight of a constant one; its
    ``g_error`` is infinite where there is none. Elsewhere ``g_error`` is one number a channel.
    """

    geometry: Geometry
    kernel: Tensor
    z: Tensor
    z_error: Tensor
    delta: Tensor
    bend: Tensor
    g: Tensor
    g_error: Tensor
    precision: Tensor | None = None
    told: int | None = None  # how many rows the precision stands for
    reach: float = math.inf  # how large inputs may be expected to be, where no row tells

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the input."""
        return (self.kernel.shape[1], *self.geometry.size)

    @property
    def count(self) -> int:
        """How many rows say something."""
        told = int(self.z_error.isfinite().sum())
        if self.precision is not None:
            told = self.z.numel() if self.told is None else self.told
        return told + int(self.g_error.isfinite().sum())

    def moved(self, x: Tensor) -> Tensor:
        """``K ∗ x`` of an input (n,), as (Co, Ho, Wo)."""
        return self.geometry.forward(x.view(1, *self.shape), self.kernel)[0]

    def seen(self, x: Tensor) -> Tensor:
        """(Ci·k+1, L): what each position sees of an input (n,), and the constant one."""
        patches = self.geometry.patches(x.view(self.shape))
        return torch.cat([patches, torch.ones_like(patches[:1])])

    def misfits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of the forward rows as they are, and of the gradients in units of their errors."""
        off = self.z - self.moved(x)
        delta = (self.delta - self.bend * off).flatten(1)
        return off, (self.g - delta @ self.seen(x).T) / self.g_error

    def weighted(self, off: Tensor) -> Tensor:
        """Misfits (Co, Ho, Wo) of the forward rows, times their weights."""
        if self.precision is not None:
            return (self.precision @ off.flatten()).view_as(off)
        return off * self.z_error.square().clamp_min(TINY).reciprocal()

    def squares(self, x: Tensor) -> float:
        """The sum of all rows' squared misfits, in units of their errors."""
        off, gradient = self.misfits(x)
        return float((off * self.weighted(off)).sum() + gradient.square().sum())

    def slope(self, x: Tensor, around: Tensor) -> Tensor:
        """``Aᵀ(b − A x)`` over all rows, their derivative taken ``around`` a nearby input."""
        off, gradient = self.misfits(x)
        pulled = gradient / self.g_error
        outputs = self.weighted(off) + self.bend * (pulled @ self.seen(around)).view_as(off)
        back = self.geometry.transposed(outputs[None], self.kernel)[0]
        seen = self.geometry.gathered(pulled[:, :-1].T @ self.delta.flatten(1))
        return (back + seen).flatten() - x / self.reach**2

    def rough(self) -> Tensor:
        """An input (n,) that comes near, δ and independent errors taken as they are."""
        rigid = replace(self, bend=torch.zeros_like(self.bend), precision=None)
        zero = torch.zeros(self.shape, dtype=self.z.dtype, device=self.z.device).flatten()
        right = rigid.slope(zero, zero)
        diagonal = rigid.diagonal()
        return descend(lambda v: right - rigid.slope(v, zero), right, lambda r: r / diagonal, ROUGH)

    def diagonal(self) -> Tensor:
        """That of the normal matrix (n,), δ and independent errors taken as they are."""
        weights = self.weighted(torch.ones_like(self.z))
        forward = self.geometry.transposed(weights[None], self.kernel.square())[0]
        strength = (self.delta.flatten(1) / self.g_error[:, :1]).square().sum(0)
        taps = strength.expand(self.kernel[0].numel(), -1)
        return (forward + self.geometry.gathered(taps)).flatten().clamp_min(TINY)

    def normal(self, around: Tensor) -> Tensor:
        """(n, n) the normal matrix around an input (n,).

        With ``B`` for what gradients see of ``x`` itself, block by channel, ``T`` for the
        convolution and ``M T`` for what they see through δ, it is ``(B + MT)ᵀ(B + MT) + TᵀΛT``.
        """
        plane = self.plane()
        through = self.bend.flatten(1)[:, None] * self.seen(around) / self.g_error[..., None]
        inner = self._forward_precision()
        add_blocks(inner, through.transpose(1, 2) @ through)
        half = self.transposed(inner).T.contiguous().div_(2)
        half += self._crossed(plane, through)
        total = self.transposed(half)
        total = total + total.T
        rows = plane.flatten(0, 1)
        add_blocks(total, (rows.T @ rows).expand(self.shape[0], -1, -1))
        total.diagonal().add_(self.reach**-2)
        return total

    def _forward_precision(self) -> Tensor:
        if self.precision is not None:
            return self.precision.clone()
        return self.weighted(torch.ones_like(self.z)).flatten().diag()

    def transposed(self, rows: Tensor) -> Tensor:
        """``rows T`` (R, n) for rows over the outputs (R, m)."""
        shaped = rows.view(len(rows), *self.z.shape)
        return self.geometry.transposed(shaped, self.kernel).flatten(1)

    def plane(self) -> Tensor:
        """(Co, k, H·W): what weight gradients see of one input channel."""
        seen = self.geometry.plane.T  # (k, L)
        scaled = self.delta.flatten(1) / self.g_error[:, :1]
        outputs = scaled[:, None].expand(-1, len(seen), -1)
        size = self.geometry.size[0] * self.geometry.size[1]
        rows = self.delta.new_zeros(len(scaled), len(seen), size + 1)
        return rows.scatter_add_(2, seen.expand(len(scaled), -1, -1), outputs)[..., :-1]

    def _crossed(self, plane: Tensor, through: Tensor) -> Tensor:
        """``BᵀM`` (n, m)."""
        outputs, taps = plane.shape[:2]
        per_channel = through[:, :-1].view(outputs, -1, taps, through.shape[-1])
        product = plane.transpose(1, 2)[:, None] @ per_channel  # (Co, Ci, H·W, L)
        return product.permute(1, 2, 0, 3).flatten(0, 1).flatten(1)


def add_blocks(matrix: Tensor, blocks: Tensor) -> None:
    """Add square ``blocks`` (B, s, s) to the diagonal of a matrix (B·s, B·s)."""
    size = blocks.shape[1]
    for i, block in enumerate(blocks):
        matrix[i * size : (i + 1) * size, i * size : (i + 1) * size] += block
