"""Where a convolution looks: its linear maps in both directions, without ever being a matrix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softleak.errors import ModelError


@dataclass(frozen=True, eq=False)
class Geometry:
    """The kernel's size, stride, padding and dilation, on inputs of (height, width)."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    size: tuple[int, int]
    plane: Tensor  # (L, k): the input entries each output position sees, H·W standing for padding

    @classmethod
    def of(cls, layer: nn.Conv2d, size: tuple[int, int]) -> Geometry:
        """That of a layer with zero padding."""
        padding = padding_of(layer)
        if padding is None:
            raise ModelError(f"expected the same padding on both sides, got {layer.padding!r}")
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
        """``K ∗ x`` for a batch of inputs (N, C, H, W)."""
        return F.conv2d(x, kernel, None, self.stride, self.padding, self.dilation, groups)

    def transposed(self, out: Tensor, kernel: Tensor, groups: int = 1) -> Tensor:
        """The transpose of ``forward`` for a batch of outputs (N, C, H, W)."""
        shape = (len(out), kernel.shape[1] * groups, *self.size)
        found: Tensor = torch.ops.aten.convolution_backward(
            out, out.new_empty(1).expand(shape), kernel, None, self.stride, self.padding,
            self.dilation, False, [0, 0], groups, [True, False, False],
        )[0]  # fmt: skip
        return found

    def patches(self, x: Tensor) -> Tensor:
        """(C·k, L): what each output position sees of an input (C, H, W)."""
        seen: Tensor = F.unfold(x[None], self.kernel, self.dilation, self.padding, self.stride)
        return seen[0]

    def gathered(self, patches: Tensor) -> Tensor:
        """The transpose of ``patches``: (C, H, W)."""
        found: Tensor = F.fold(
            patches[None], self.size, self.kernel, self.dilation, self.padding, self.stride
        )
        return found[0]

    def add_local(self, matrix: Tensor, blocks: Tensor) -> None:
        """Add to a matrix (n, n) what each position adds to the entries it sees.

        ``blocks`` (C, k, C, k, Ho, Wo): the positions that two taps share lie on one diagonal.
        """
        (height, width), (down, across), count = self.size, self.stride, len(matrix)
        channels, plane = len(blocks), height * width
        steps = (plane * count, plane, down * width * (count + 1), across * (count + 1))
        for (a, ya, xa), (b, yb, xb) in product(self._taps(), repeat=2):
            rows = _both(ya, yb, down, height, blocks.shape[-2])
            columns = _both(xa, xb, across, width, blocks.shape[-1])
            if not rows or not columns:
                continue
            seen = blocks[:, a, :, b, rows.start : rows.stop, columns.start : columns.stop]
            y, x = down * rows.start, across * columns.start
            start = ((y + ya) * width + x + xa) * count + (y + yb) * width + x + xb
            size = (channels, channels, len(rows), len(columns))
            matrix.as_strided(size, steps, start).add_(seen)

    def _taps(self) -> Iterator[tuple[int, int, int]]:
        """Each tap's number, and the row and column it sees from the first position."""
        for y, x in product(*map(range, self.kernel)):
            down, across = y * self.dilation[0], x * self.dilation[1]
            yield y * self.kernel[1] + x, down - self.padding[0], across - self.padding[1]


def _both(a: int, b: int, stride: int, size: int, count: int) -> range:
    """The positions along one axis from which two taps see the input, not the padding."""
    low, high = min(a, b), max(a, b)
    return range(max(0, -(low // stride)), min(count, (size - 1 - high) // stride + 1))


def padding_of(layer: nn.Conv2d) -> tuple[int, int] | None:
    """Rows and columns of zeros on either side, if it is as many on both."""
    match layer.padding:
        case (int(rows), int(columns)):
            return rows, columns
        case "valid":
            return 0, 0
        case _:
            extra = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
            return None if any(e % 2 for e in extra) else (extra[0] // 2, extra[1] // 2)
