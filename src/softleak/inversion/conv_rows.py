"""This module turns what is known at a convolution's output into rows for its input.

Forward rows are weighted by how well the output is known, and gradient rows by rounding, noise
and the error of δ. Each group of channels is a problem of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from softleak.inversion.geometry import Geometry
from softleak.inversion.rows import Rows
from softleak.inversion.state import TINY, LayerState
from softleak.inversion.step import gradient
from softleak.share import GradientShare


@dataclass(frozen=True)
class ConvRowSettings:
    """These are the settings of a convolution's rows.

    Attributes:
        prior_factor: Where no row tells an input's size, it is expected to be within this many
            times the size that the gradients suggest.
        faint_delta: Channels whose |δ| is below this part of the largest say nothing of the
            input's size.
        gradient_roundings: The rounding error of a gradient of kernel or bias, in resolutions of
            its type.
        output_roundings: The rounding error of an output that was itself computed, in resolutions
            of the layer's type.
        rounding_floor: An entry's rounding error is at least that of an entry of this part of the
            tensor's largest, since sums round at the size of their terms.
    """

    prior_factor: float = 10.0
    faint_delta: float = 1e-9
    gradient_roundings: float = 2.0
    output_roundings: float = 4.0
    rounding_floor: float = 1e-3


CONV_ROW_SETTINGS = ConvRowSettings()


@dataclass(frozen=True, eq=False)
class ConvRows:
    """This builds the rows of one convolution, for the outputs and gradients of one share.

    Attributes:
        name: The layer's name in the model.
        layer: The layer.
        geometry: Where it looks.
        settings: The settings of its rows.
    """

    name: str
    layer: nn.Conv2d
    geometry: Geometry
    settings: ConvRowSettings = CONV_ROW_SETTINGS

    @property
    def bias(self) -> Tensor | float:
        """Return the layer's bias (Co, 1, 1), zero if it has none."""
        bias = self.layer.bias
        return 0.0 if bias is None else bias.detach().double()[:, None, None]

    def resolution(self, share: GradientShare) -> float:
        """Return the relative rounding error of the layer's weight gradient."""
        return share.resolution(f"{self.name}.weight", self.layer.weight.dtype)

    def of(self, out: LayerState, share: GradientShare) -> list[Rows]:
        """Return the rows of each group.

        Args:
            out: What is known at the layer's output (Co, Ho, Wo).
            share: The gradients that the client sent.
        """
        z, above, groups = out.measurement, out.sensitivity, self.layer.groups
        input_size = self._input_size(above.delta, share)
        g, g_error = self._gradients(out, share, input_size)
        rounding = self.settings.output_roundings * self.resolution(share) * z.value.abs()
        parts = (  # in the order of the fields of Rows
            self.layer.weight.detach().double(),
            z.value - self.bias,
            z.error + rounding,
            above.delta,
            above.curvature,
            g,
            g_error,
        )
        precision = z.precision if groups == 1 else None
        prior_size = self.settings.prior_factor * input_size
        split = zip(*(part.chunk(groups) for part in parts), strict=True)
        rows = [Rows(self.geometry, k, y, e, d, c, own, off) for k, y, e, d, c, own, off in split]
        return [
            replace(r, precision=precision, measurements=z.measurements, prior_size=prior_size)
            for r in rows
        ]

    def _gradients(
        self, out: LayerState, share: GradientShare, input_size: float
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients of kernel and bias (Co, C·k + 1) and their errors.

        The error of a gradient of the kernel is that of rounding and noise, and that of δ times
        the input's size. A missing gradient of the bias has an infinite error.
        """
        above, floor = out.sensitivity, self.settings.rounding_floor
        rounding = self.settings.gradient_roundings * self.resolution(share)
        weight = gradient(share, f"{self.name}.weight", self.layer.weight).double().flatten(1)
        largest = weight.abs().amax(1)
        size = above.delta.flatten(1).norm(dim=1).clamp_min(TINY)
        own = rounding * (largest + floor * largest.amax()) + share.noise(f"{self.name}.weight")
        off = above.error.hypot(above.scale_error * above.delta).flatten(1).norm(dim=1)
        error = (own.hypot(off * input_size) + TINY)[:, None].expand_as(weight)
        name = f"{self.name}.bias"
        if self.layer.bias is None or name not in share:
            nothing = torch.zeros_like(size)[:, None]
            return torch.cat([weight, nothing], 1), torch.cat([error, nothing + torch.inf], 1)
        bias = gradient(share, name, self.layer.bias).double()
        bias_error = (rounding * (bias.abs() + size) + share.noise(name)).hypot(off) + TINY
        return torch.cat([weight, bias[:, None]], 1), torch.cat([error, bias_error[:, None]], 1)

    def _input_size(self, delta: Tensor, share: GradientShare) -> float:
        """Return roughly the root mean square of the input.

        It is ``max |∂L/∂K| / ‖δ‖`` of the most telling channel, over the root of the number of
        positions.
        """
        weight = gradient(share, f"{self.name}.weight", self.layer.weight).double()
        largest, size = weight.flatten(1).abs().amax(1), delta.flatten(1).norm(dim=1)
        clear = size > self.settings.faint_delta * size.max()
        if not clear.any():
            return 1.0
        positions: float = delta[0].numel() ** 0.5
        return float((largest[clear] / size[clear]).amax()) / positions or 1.0
