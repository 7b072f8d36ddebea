"""This module applies the transpose of a convolution to many columns, by products of matrices.

The outputs are cut into tiles of a few positions. What a tile adds to the input is the product of
one small matrix, the same for all tiles, with the tile's columns.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from softleak.inversion.geometry import Geometry

TILE = 2  # positions along a side: larger tiles multiply more zeros, smaller ones add more often


def transposed_columns(geometry: Geometry, kernel: Tensor, columns: Tensor) -> Tensor:
    """Return ``Tᵀ columns`` (n, R), T being the convolution's matrix (m, n).

    Args:
        geometry: Where the convolution looks.
        kernel: The kernel (Co, C, kh, kw).
        columns: Columns over the outputs (Co, Ho, Wo, R), in the precision of the kernel.
    """
    (down, across), (top, left) = geometry.stride, geometry.padding
    count, (height, width) = columns.shape[-1], geometry.size
    matrix = _tile_matrix(geometry, kernel)  # (Co, TILE, TILE, C, ph, pw)
    channels, *patch = matrix.shape[3:]
    bottom, right = (
        max((positions - 1) // TILE * TILE * step + seen, before + size)
        for positions, step, seen, before, size in zip(
            columns.shape[1:3], geometry.stride, patch, geometry.padding, geometry.size, strict=True
        )
    )
    total = columns.new_zeros(channels, bottom, right, count)
    for y in range(0, columns.shape[1], TILE):
        for x in range(0, columns.shape[2], TILE):
            tile = columns[:, y : y + TILE, x : x + TILE]
            used = matrix[:, : tile.shape[1], : tile.shape[2]].flatten(0, 2).flatten(1)
            added = used.T @ tile.reshape(len(used), count)
            row, column = y * down, x * across
            seen = total[:, row : row + patch[0], column : column + patch[1]]
            seen += added.view(channels, *patch, count)
    return total[:, top : top + height, left : left + width].reshape(-1, count)


def _tile_matrix(geometry: Geometry, kernel: Tensor) -> Tensor:
    """Return what each output of a tile adds to the patch that it sees (Co, T, T, C, ph, pw)."""
    size = (
        (TILE - 1) * geometry.stride[0] + (geometry.kernel[0] - 1) * geometry.dilation[0] + 1,
        (TILE - 1) * geometry.stride[1] + (geometry.kernel[1] - 1) * geometry.dilation[1] + 1,
    )
    alone = replace(geometry, padding=(0, 0), size=size)
    shape = (len(kernel), TILE, TILE)
    outputs = torch.eye(len(kernel) * TILE * TILE, dtype=kernel.dtype, device=kernel.device)
    return alone.transposed(outputs.view(-1, *shape), kernel).view(*shape, kernel.shape[1], *size)
