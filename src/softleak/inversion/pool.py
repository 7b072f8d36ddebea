"""Average pooling: what it averaged is not told apart here, but becomes rows for the layer below.

Value and ``∂L/∂output`` pass through the transpose of the pooling matrix; the precision of the
averages becomes one of the entries, of lower rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softleak.inversion.state import Known
from softleak.inversion.step import Inverted
from softleak.share import GradientShare

RANK = 1e-9  # of the largest singular value


@dataclass(frozen=True, eq=False)
class Pool:
    """Pooling of planes (H, W) by one matrix (m, H·W), channel by channel."""

    name: str
    input_shape: tuple[int, ...]
    matrix: Tensor
    injective: bool

    @classmethod
    def of(cls, name: str, layer: nn.Module, input_shape: tuple[int, ...]) -> Pool:
        """The matrix of a layer, by what it does to every pixel."""
        height, width = input_shape[-2:]
        pixels = torch.eye(height * width, dtype=torch.double).view(-1, 1, height, width)
        matrix = layer(pixels).flatten(1).T.contiguous()
        rank = int(torch.linalg.matrix_rank(matrix, rtol=RANK))
        return cls(name, input_shape, matrix, rank == height * width)

    def back(self, out: Known, share: GradientShare) -> Inverted:
        matrix = self.matrix.to(out.value.device)
        value = out.value.flatten(1) @ torch.linalg.pinv(matrix).T
        error = out.own_delta_error.flatten(1)
        channels = torch.eye(self.input_shape[0], dtype=torch.double, device=matrix.device)
        blocks = torch.kron(channels, matrix)
        precision = out.precision
        if precision is None:
            known = out.error.flatten().clamp_min(1e-300)
            precision = torch.where(known.isfinite(), known.square().reciprocal(), 0.0).diag()
        precision = blocks.T @ precision @ blocks
        alone = precision.diagonal().rsqrt()  # a lower bound, exact where nothing overlaps
        bars = alone if self.injective else torch.full_like(alone, torch.inf)
        known_below = Known(
            value.view(self.input_shape),
            bars.view(self.input_shape),
            (out.delta.flatten(1) @ matrix).view(self.input_shape),
            (error.square() @ matrix.square()).sqrt().view(self.input_shape),
            torch.zeros_like(value).view(self.input_shape),
            precision,
            drift=out.drift,
            told=out.value.numel(),
        )
        return Inverted(known_below)
