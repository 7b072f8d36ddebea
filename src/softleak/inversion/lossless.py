"""This module inverts layers that lose nothing: reshapes, BatchNorm in eval mode, arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from softleak.errors import ModelError
from softleak.inversion.state import LayerState, Sensitivity
from softleak.inversion.step import Inverted
from softleak.inversion.tangent import Tangent
from softleak.share import GradientShare


@dataclass(frozen=True)
class Reshape:
    """This step changes shapes only: flatten, view, reshape, and dropout in eval mode."""

    name: str
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]

    def back(
        self, out: LayerState, share: GradientShare, tangent: Tangent | None = None
    ) -> Inverted:
        through = None if tangent is None else tangent.through(self)
        return Inverted(self.carried(out), tangent=through)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` in the shape of the output."""
        return x.reshape(self.output_shape)

    def carried(self, out: LayerState) -> LayerState:
        """Return the state in the shape of the input."""
        return out.reshape(self.input_shape)


@dataclass(frozen=True, eq=False)
class Affine:
    """This step is ``y = scale · x + shift``, entry by entry.

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
        """Return a BatchNorm with fixed statistics as a step.

        Its scale is ``γ/√(variance + ε)`` and its shift ``β − scale · mean``, per channel.

        Args:
            name: The layer's name in the model.
            layer: The layer, with running statistics.
            input_shape: The input's shape (C, ...), without the batch.
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

    def back(
        self, out: LayerState, share: GradientShare, tangent: Tangent | None = None
    ) -> Inverted:
        through = None if tangent is None else tangent.through(self)
        return Inverted(self.carried(out), tangent=through)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``scale · x + shift``."""
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
