"""This module multiplies many tangents with what a convolution makes of them, as large products.

The gradient of a kernel is a sum over places of ``δ(p) a(p)ᵀ``. It is linear in ``δ`` and in ``a``.
If one of the two is the same for all tangents, its patches are laid out once, and the gradients of
all tangents are a single matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

PLANE = 2  # spatial dimensions of an image


@dataclass(frozen=True)
class KernelShape:
    """This says how a kernel of a plain two-dimensional convolution moves over an image.

    Attributes:
        size: the height and width of the kernel.
        stride: the distance between its places.
        padding: the zeros that are added on each side.
        dilation: the distance between its entries.
    """

    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    def of_delta(self, delta: Tensor, x: Tensor) -> Tensor:
        """Return the kernel's gradients (K, out, in, h, w) for K sensitivities ``δ``.

        Args:
            delta: the sensitivities of the outputs, (K, B, out, H', W').
            x: the input (B, in, H, W) that all have in common.
        """
        patches = F.unfold(x, self.size, self.dilation, self.padding, self.stride)
        right = patches.transpose(1, 2).reshape(-1, patches.shape[1])
        found = _joined(delta) @ right
        return found.view(len(delta), delta.shape[2], x.shape[1], *self.size)

    def of_input(self, x: Tensor, delta: Tensor) -> Tensor:
        """Return the kernel's gradients (K, out, in, h, w) for K inputs.

        Args:
            x: the inputs (K, B, in, H, W).
            delta: the sensitivity (B, out, H', W') that all have in common.
        """
        patches = self._patches_around(delta, (x.shape[3], x.shape[4]))
        right = patches.permute(0, 4, 1, 2, 3).reshape(-1, patches[0, ..., 0].numel())
        found = _joined(x) @ right
        return found.view(len(x), x.shape[2], delta.shape[1], *self.size).transpose(1, 2)

    def _patches_around(self, delta: Tensor, size: tuple[int, int]) -> Tensor:
        """Return for each place of the input which sensitivity each entry of the kernel carries to
        it, as (B, out, h, w, H · W).
        """
        apart = delta
        if self.stride != (1, 1):
            down, right = self.stride
            high, wide = delta.shape[2:]
            apart = delta.new_zeros(*delta.shape[:2], (high - 1) * down + 1, (wide - 1) * right + 1)
            apart[:, :, ::down, ::right] = delta
        sides: list[int] = []
        for axis in (1, 0):
            reach = self.dilation[axis] * (self.size[axis] - 1)
            before = reach - self.padding[axis]
            sides += [before, size[axis] + reach - apart.shape[2 + axis] - before]
        patches = F.unfold(F.pad(apart, sides), self.size, self.dilation)
        return patches.view(*delta.shape[:2], *self.size, -1).flip(2, 3)


def _joined(many: Tensor) -> Tensor:
    """Return (K, B, C, H, W) as a matrix (K · C, B · H · W)."""
    k, batch, channels = many.shape[:3]
    places = many.flatten(3)
    if batch > 1:
        places = places.transpose(1, 2)
    return places.reshape(k * channels, -1)


def kernel_shape(weight: Tensor, settings: list[object]) -> KernelShape | None:
    """Return the kernel of a plain two-dimensional convolution, or None if it is another.

    Args:
        weight: its weights (out, in, h, w).
        settings: stride, padding, dilation, whether it is transposed, output padding and groups.
    """
    stride, padding, dilation, transposed, _, groups = settings
    if weight.dim() != 2 + PLANE or transposed or groups != 1:
        return None
    pairs = [_pair(value) for value in (weight.shape[2:], stride, padding, dilation)]
    return KernelShape(*pairs)


def _pair(value: object) -> tuple[int, int]:
    first, *rest = torch.Size(value)  # type: ignore[arg-type]
    return (first, rest[0] if rest else first)
