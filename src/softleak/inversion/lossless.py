"""Linear steps that need no gradient: reshaping, fixed factors and shifts, average pooling.

The entries that a pool averaged cannot be told apart there. The averages become rows for the
convolution below: with the pooling matrix P, the value is ``P⁺y``, δ is ``Pᵀδ``, and the precision
Λ of the averages becomes ``PᵀΛP``, which is of lower rank than the number of entries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from softleak.core.errors import ModelError
from softleak.core.share import GradientShare
from softleak.inversion.state import (
    Inverted,
    LayerState,
    LosslessStep,
    Measurement,
    Sensitivity,
    Tangent,
)
from softleak.numerics.least_squares import TINY

RANK_TOLERANCE = 1e-9  # of the largest singular value: what is smaller counts as zero


class _Lossless(LosslessStep, Protocol):
    """A step with an exact inverse: a tangent is carried through it."""

    def back(
        self, out: LayerState, share: GradientShare, tangent: Tangent | None = None
    ) -> Inverted:
        through = None if tangent is None else tangent.through(self)
        return Inverted(self.carried(out), tangent=through)


@dataclass(frozen=True)
class Reshape(_Lossless):
    """A step that changes shapes only: flatten, view, reshape, and dropout in eval mode."""

    name: str
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(self.output_shape)

    def carried(self, out: LayerState) -> LayerState:
        return out.reshape(self.input_shape)


@dataclass(frozen=True, eq=False)
class Affine(_Lossless):
    """The step ``y = scale · x + shift``, entry by entry.

    ``scale`` and ``shift`` have the shape of the input, or one entry per channel and ones for the
    other dimensions.
    """

    name: str
    scale: Tensor
    shift: Tensor

    @classmethod
    def of(
        cls, name: str, layer: nn.BatchNorm2d | nn.BatchNorm1d, input_shape: tuple[int, ...]
    ) -> Affine:
        """Return a BatchNorm with running statistics as a step, for an input (C, ...).

        Its scale is ``γ/√(variance + ε)`` and its shift ``β − scale · mean``, per channel.
        """
        mean, variance = layer.running_mean, layer.running_var
        if mean is None or variance is None:
            raise ModelError(
                f"expected {name} ({type(layer).__name__}) to have running statistics, got none: "
                "it then normalises by the batch; build it with track_running_stats=True"
            )
        gamma = torch.ones_like(mean) if layer.weight is None else layer.weight.detach()
        beta = torch.zeros_like(mean) if layer.bias is None else layer.bias.detach()
        scale = gamma.double() / (variance.double() + layer.eps).sqrt()
        shift = beta.double() - scale * mean.double()
        shape = (-1, *[1] * (len(input_shape) - 1))
        return cls(name, scale.view(shape), shift.view(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift

    def carried(self, out: LayerState) -> LayerState:
        """Return ``(value − shift)/scale``, ``δ · scale`` and their errors.

        An entry that was multiplied by zero is not known.
        """
        z, above, scale = out.measurement, out.sensitivity, self.scale
        lost = scale == 0
        each = scale.expand_as(z.value).flatten()
        measurement = replace(
            z,
            value=torch.where(lost, 0.0, (z.value - self.shift) / scale),
            error=torch.where(lost, torch.inf, z.error / scale.abs()),
            precision=None if z.precision is None else z.precision * each[:, None] * each,
        )
        sensitivity = Sensitivity(
            above.delta * scale,
            above.error * scale.abs(),
            above.curvature * scale.square(),
            above.scale_error,
        )
        return LayerState(measurement, sensitivity)


@dataclass(frozen=True, eq=False)
class Pool:
    """A step that pools planes (H, W) by one matrix (m, H·W), channel by channel.

    ``injective`` says whether the averages determine every pixel.
    """

    name: str
    input_shape: tuple[int, ...]
    matrix: Tensor
    injective: bool

    @classmethod
    def of(cls, name: str, layer: nn.Module, input_shape: tuple[int, ...]) -> Pool:
        """Return a linear pooling layer as a step, its matrix built by pooling every single pixel.

        ``input_shape`` is (C, H, W).
        """
        height, width = input_shape[-2:]
        pixels = torch.eye(height * width, dtype=torch.double).view(-1, 1, height, width)
        matrix = layer(pixels).flatten(1).T.contiguous()
        rank = int(torch.linalg.matrix_rank(matrix, rtol=RANK_TOLERANCE))
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
