"""This module walks back through average pooling.

The averaged entries cannot be told apart here. The averages become rows for the convolution
below: with the pooling matrix P, the value is ``P⁺y``, δ is ``Pᵀδ``, and the precision Λ of the
averages becomes ``PᵀΛP``, which is of lower rank than the number of entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softleak.inversion.state import TINY, LayerState, Measurement, Sensitivity
from softleak.inversion.step import Inverted
from softleak.inversion.tangent import Tangent
from softleak.share import GradientShare


@dataclass(frozen=True, eq=False)
class Pool:
    """This step pools planes (H, W) by one matrix (m, H·W), channel by channel.

    ``injective`` says whether the averages determine every pixel.
    """

    name: str
    input_shape: tuple[int, ...]
    matrix: Tensor
    injective: bool

    @classmethod
    def of(
        cls,
        name: str,
        layer: nn.Module,
        input_shape: tuple[int, ...],
        rank_tolerance: float = 1e-9,
    ) -> Pool:
        """Return a pooling layer as a step, its matrix built by pooling every single pixel.

        Args:
            name: The layer's name in the model.
            layer: The layer, linear in its input.
            input_shape: The input's shape (C, H, W).
            rank_tolerance: Singular values below this part of the largest count as zero.
        """
        height, width = input_shape[-2:]
        pixels = torch.eye(height * width, dtype=torch.double).view(-1, 1, height, width)
        matrix = layer(pixels).flatten(1).T.contiguous()
        rank = int(torch.linalg.matrix_rank(matrix, rtol=rank_tolerance))
        return cls(name, input_shape, matrix, rank == height * width)

    def back(
        self, out: LayerState, share: GradientShare, tangent: Tangent | None = None
    ) -> Inverted:
        z, above, shape = out.measurement, out.sensitivity, self.input_shape
        matrix = self.matrix.to(z.value.device)
        value = (z.value.flatten(1) @ torch.linalg.pinv(matrix).T).view(shape)
        precision = self._precision(z, matrix)
        alone = precision.diagonal().rsqrt()  # a lower bound, exact where no averages overlap
        error = alone if self.injective else torch.full_like(alone, torch.inf)
        delta_error = out.delta_error().flatten(1)
        return Inverted(
            LayerState(
                Measurement(value, error.view(shape), precision, measurements=z.value.numel()),
                Sensitivity(
                    (above.delta.flatten(1) @ matrix).view(shape),
                    (delta_error.square() @ matrix.square()).sqrt().view(shape),
                    torch.zeros_like(value),
                    above.scale_error,
                ),
            )
        )

    def _precision(self, z: Measurement, matrix: Tensor) -> Tensor:
        """Return ``PᵀΛP`` (n, n) over all channels, Λ being the precision of the averages."""
        channels = torch.eye(self.input_shape[0], dtype=torch.double, device=matrix.device)
        blocks = torch.kron(channels, matrix)
        precision = z.precision
        if precision is None:
            error = z.error.flatten().clamp_min(TINY)
            precision = torch.where(error.isfinite(), error.square().reciprocal(), 0.0).diag()
        return blocks.T @ precision @ blocks
