"""Layers that lose nothing: shapes, identities, BatchNorm in eval mode, arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softleak.errors import ModelError
from softleak.inversion.state import Known
from softleak.inversion.step import Inverted
from softleak.share import GradientShare


@dataclass(frozen=True)
class Reshape:
    """Flatten, view, reshape; also what does nothing, as dropout in eval mode."""

    name: str
    shape: tuple[int, ...]

    def back(self, out: Known, share: GradientShare) -> Inverted:
        return Inverted(out.map(lambda entries: entries.reshape(self.shape)))


@dataclass(frozen=True, eq=False)
class Affine:
    """``y = scale · x + shift``, both of the input's shape or one number a channel."""

    name: str
    scale: Tensor
    shift: Tensor

    @classmethod
    def of(
        cls, name: str, layer: nn.BatchNorm2d | nn.BatchNorm1d, input_shape: tuple[int, ...]
    ) -> Affine:
        """The map a normalisation with fixed statistics is."""
        mean, variance = layer.running_mean, layer.running_var
        if mean is None or variance is None:
            raise ModelError(f"{name} has no running statistics: it is not a fixed map")
        gamma = torch.ones_like(mean) if layer.weight is None else layer.weight.detach()
        beta = torch.zeros_like(mean) if layer.bias is None else layer.bias.detach()
        scale = gamma.double() / (variance.double() + layer.eps).sqrt()
        shift = beta.double() - scale * mean.double()
        shape = (-1, *[1] * (len(input_shape) - 1))
        return cls(name, scale.view(shape), shift.view(shape))

    def back(self, out: Known, share: GradientShare) -> Inverted:
        return Inverted(self._before(out))

    def _before(self, out: Known) -> Known:
        scale, shift = self.scale, self.shift
        lost = scale == 0  # what was multiplied by zero is not known
        each = scale.expand_as(out.value).flatten()
        precision = None if out.precision is None else out.precision * each[:, None] * each

        def again(better: Tensor) -> Known | None:
            found = None if out.again is None else out.again(better * scale + shift)
            return None if found is None else self._before(found)

        return Known(
            torch.where(lost, 0.0, (out.value - shift) / scale),
            torch.where(lost, torch.inf, out.error / scale.abs()),
            out.delta * scale,
            out.delta_error * scale.abs(),
            out.bend * scale.square(),
            precision,
            out.drift,
            out.told,
            out.doubt,
            again,
        )
