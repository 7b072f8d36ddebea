"""Where a convolution looks, and its transpose.

For many columns at once the transpose is a product of matrices. The outputs are cut into tiles of
a few positions. What a tile adds to the input is the product of one small matrix, the same for all
tiles, with the tile's columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softleak.core.errors import ModelError


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
        height, width = size
        count = height * width
        index = torch.arange(1, count + 1, dtype=torch.double, device=layer.weight.device)
        seen = F.unfold(index.view(1, 1, height, width), kernel, dilation, padding, stride)
        plane = seen[0].T.long() - 1
        plane = torch.where(plane < 0, count, plane)
        return cls(kernel, stride, padding, dilation, size, plane)

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

        The positions at which two taps see two pixels lie on one diagonal of the matrix, so that
        each pair of taps is one addition to a strided view.

        Args:
            matrix: A contiguous matrix over the n = C·H·W entries of the input.
            blocks: What each position adds to each pair of entries: (C, k, C, k, Ho, Wo).
        """
        (height, width), (down, across), count = self.size, self.stride, len(matrix)
        channels, plane = len(blocks), height * width
        steps = (plane * count, plane, down * width * (count + 1), across * (count + 1))
        for (a, ya, xa), (b, yb, xb) in product(self._taps(), repeat=2):
            rows = _shared_positions(ya, yb, down, height, blocks.shape[-2])
            columns = _shared_positions(xa, xb, across, width, blocks.shape[-1])
            if not rows or not columns:
                continue
            seen = blocks[:, a, :, b, rows.start : rows.stop, columns.start : columns.stop]
            y, x = down * rows.start, across * columns.start
            start = ((y + ya) * width + x + xa) * count + (y + yb) * width + x + xb
            size = (channels, channels, len(rows), len(columns))
            matrix.as_strided(size, steps, start).add_(seen)

    def _taps(self) -> Iterator[tuple[int, int, int]]:
        """Yield each tap's number, and the row and column that it sees from the first position."""
        for y, x in product(*map(range, self.kernel)):
            down, across = y * self.dilation[0], x * self.dilation[1]
            yield y * self.kernel[1] + x, down - self.padding[0], across - self.padding[1]


def _shared_positions(a: int, b: int, stride: int, size: int, count: int) -> range:
    """Return which of ``count`` positions along one axis let two taps see the input, not padding.

    ``a`` and ``b`` are where the taps look from position zero.
    """
    low, high = min(a, b), max(a, b)
    return range(max(0, -(low // stride)), min(count, (size - 1 - high) // stride + 1))


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
