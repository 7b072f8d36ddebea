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
    """This says how the kernel of a two-dimensional convolution moves over an image.

    Attributes:
        size: the height and width of the kernel.
        stride: the distance between its places.
        padding: the zeros that are added on each side.
        dilation: the distance between its entries.
        groups: into how many groups the channels are split that do not see each other.
    """

    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int = 1

    def of_delta(self, delta: Tensor, x: Tensor) -> Tensor:
        """Return the kernel's gradients (K, out, in / groups, h, w) for K sensitivities ``δ``.

        Args:
            delta: the sensitivities of the outputs, (K, B, out, H', W').
            x: the input (B, in, H, W) that all have in common.
        """
        right = self.patches(x)
        found = self.side_by_side(delta) @ right
        found = found.view(self.groups, len(delta), -1, right.shape[2]).transpose(0, 1)
        return found.reshape(len(delta), delta.shape[2], -1, *self.size)

    def of_input(self, x: Tensor, delta: Tensor) -> Tensor:
        """Return the kernel's gradients (K, out, in / groups, h, w) for K inputs.

        Args:
            x: the inputs (K, B, in, H, W).
            delta: the sensitivity (B, out, H', W') that all have in common.
        """
        patches = self._patches_around(delta, (x.shape[3], x.shape[4]))
        places = patches.shape[-1]
        right = patches.reshape(len(delta), self.groups, -1, places).permute(1, 0, 3, 2)
        found = self.side_by_side(x) @ right.reshape(self.groups, -1, right.shape[3])
        own = delta.shape[1] // self.groups
        found = found.view(self.groups, len(x), -1, own, *self.size).permute(1, 0, 3, 2, 4, 5)
        return found.flatten(1, 2)

    def patches(self, x: Tensor) -> Tensor:
        """Return what the kernel sees of inputs (B, in, H, W) at each place.

        Returns:
            One matrix (B · places, in / groups · h · w) for each group.
        """
        found = F.unfold(x, self.size, self.dilation, self.padding, self.stride)
        found = found.view(len(x), self.groups, -1, found.shape[2]).permute(1, 0, 3, 2)
        return found.reshape(self.groups, -1, found.shape[3])

    def side_by_side(self, many: Tensor) -> Tensor:
        """Return (K, B, C, H, W) as matrices (groups, K · C / groups, B · H · W)."""
        k, batch, channels = many.shape[:3]
        places = many.reshape(k, batch, self.groups, channels // self.groups, -1)
        return places.permute(2, 0, 3, 1, 4).reshape(self.groups, -1, batch * places.shape[-1])

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


def kernel_shape(weight: Tensor, settings: list[object]) -> KernelShape | None:
    """Return the kernel of a two-dimensional convolution, or None if it is another one.

    Args:
        weight: its weights (out, in / groups, h, w).
        settings: stride, padding, dilation, whether it is transposed, output padding and groups.
    """
    stride, padding, dilation, transposed, _, groups = settings
    if weight.dim() != 2 + PLANE or transposed or not isinstance(groups, int):
        return None
    size = _pair(weight.shape[2:])
    return KernelShape(size, _pair(stride), _pair(padding), _pair(dilation), groups)


def _pair(value: object) -> tuple[int, int]:
    first, *rest = torch.Size(value)  # type: ignore[arg-type]
    return (first, rest[0] if rest else first)
