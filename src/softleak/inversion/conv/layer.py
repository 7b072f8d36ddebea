"""A convolution of a chain: its input from its output and from its gradients.

All of them are linear in the input, or nearly (docs/method.md, "The input, layer by layer").
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor, nn

from softleak.core.share import GradientShare
from softleak.inversion.conv.geometry import Geometry
from softleak.inversion.conv.rows import Rows
from softleak.inversion.conv.solve import SolvedRows, solve_again, solve_quickly, solve_thoroughly
from softleak.inversion.state import (
    Inverted,
    LayerReport,
    LayerState,
    Measurement,
    Tangent,
    gradient,
)
from softleak.numerics.least_squares import TINY

PRIOR_FACTOR = 10.0  # on the size that gradients suggest, where no row tells an input's size
WEAK_DELTA = 1e-9  # of the largest |δ|: channels below it say nothing of the input's size
GRADIENT_ROUNDINGS = 2.0  # the error of a gradient, in resolutions of its type
OUTPUT_ROUNDINGS = 4.0  # the error of an output that was computed, in resolutions of its type
ROUNDING_FLOOR = 1e-3  # of the largest entry: sums round at the size of their terms
MOST_INPUTS = 3 * 64 * 64  # a matrix of their square is held in memory
LINEARISATIONS = 3  # of the activation above, at most


@dataclass(frozen=True, eq=False)
class Conv:
    """A convolution of a chain, with what the inversions of all shares have in common."""

    name: str  # the layer's name in the model
    layer: nn.Conv2d  # the layer
    input_shape: tuple[int, int, int]  # the shape (C, H, W) of its input
    geometry: Geometry  # where it looks
    quick: bool = False  # whether all errors are taken as independent, which is cheaper
    lowest: bool = False  # whether no layer below needs the precision of the input

    @classmethod
    def of(cls, name: str, layer: nn.Conv2d, input_shape: tuple[int, int, int]) -> Conv:
        """Return a layer prepared for inputs of one shape (C, H, W)."""
        return cls(name, layer, input_shape, Geometry.of(layer, input_shape[1:]))

    def back(
        self, out: LayerState, share: GradientShare, tangent: Tangent | None = None
    ) -> Inverted:
        gradient(share, f"{self.name}.weight", self.layer.weight)
        found: list[SolvedRows] = []
        for _ in range(LINEARISATIONS):
            groups = self.rows(out.with_independent_errors() if self.quick else out, share)
            found = [self._solved(*pair) for pair in zip_longest(groups, found)]
            pairs = zip(groups, found, strict=True)
            z = torch.cat([rows.forward(f.value) for rows, f in pairs]) + self.bias
            tangent = None if tangent is None else tangent.moved(z)
            if tangent is None:
                break
            out = tangent.state()
        # The output is now better known than before, and δ moves with it.
        above = out.sensitivity
        delta = above.delta + above.curvature * (z - out.measurement.value)
        below = self._delta_in(delta, above.error, self.resolution(share))
        state = LayerState.uncoupled(self._measurement(found), *below, above.scale_error)
        return Inverted(state, self._report(groups, found))

    def least_error(self, out: LayerState, share: GradientShare) -> Tensor:
        """Return the standard error (C, H, W) that each entry had if all others were known.

        It takes no system to be solved, and no pass can predict less, but for rows that agree
        better than expected.
        """
        groups = self.rows(out.with_independent_errors(), share)
        precision = torch.cat([rows.normal_diagonal() for rows in groups])
        return precision.rsqrt().view(self.input_shape)

    @property
    def bias(self) -> Tensor | float:
        """Return the layer's bias (Co, 1, 1), zero if it has none."""
        bias = self.layer.bias
        return 0.0 if bias is None else bias.detach().double()[:, None, None]

    def resolution(self, share: GradientShare) -> float:
        """Return the relative rounding error of the layer's weight gradient."""
        return share.resolution(f"{self.name}.weight", self.layer.weight.dtype)

    def rows(self, out: LayerState, share: GradientShare) -> list[Rows]:
        """Return the rows of each group, for what is known at the layer's output (Co, Ho, Wo)."""
        z, above, groups = out.measurement, out.sensitivity, self.layer.groups
        input_size = self._input_size(above.delta, share)
        g, g_error = self._gradients(out, share, input_size)
        rounding = OUTPUT_ROUNDINGS * self.resolution(share) * z.value.abs()
        parts = (  # in the order of the fields of Rows
            self.layer.weight.detach().double(), z.value - self.bias, z.error + rounding,
            above.delta, above.curvature, g, g_error,
        )  # fmt: skip
        precision = z.precision if groups == 1 else None
        prior_size = PRIOR_FACTOR * input_size
        split = zip(*(part.chunk(groups) for part in parts), strict=True)
        return [
            Rows(self.geometry, k, y, e, d, c, own, off, precision, z.measurements, prior_size)
            for k, y, e, d, c, own, off in split
        ]

    def _gradients(
        self, out: LayerState, share: GradientShare, input_size: float
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients of kernel and bias (Co, C·k + 1) and their errors.

        The error of a gradient of the kernel is that of rounding and noise, and that of δ times
        the input's size. A missing gradient of the bias has an infinite error.
        """
        above = out.sensitivity
        rounding = GRADIENT_ROUNDINGS * self.resolution(share)
        weight = gradient(share, f"{self.name}.weight", self.layer.weight).double().flatten(1)
        largest = weight.abs().amax(1)
        size = above.delta.flatten(1).norm(dim=1).clamp_min(TINY)
        own = rounding * (largest + ROUNDING_FLOOR * largest.amax()) + share.noise(
            f"{self.name}.weight"
        )
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
        clear = size > WEAK_DELTA * size.max()
        if not clear.any():
            return 1.0
        positions: float = delta[0].numel() ** 0.5
        return float((largest[clear] / size[clear]).amax()) / positions or 1.0

    def _solved(self, rows: Rows, last: SolvedRows | None) -> SolvedRows:
        """Return the solution of one group; averages always need the thorough solver.

        ``last`` is their solution before the activation above was linearised again.
        """
        if self.quick and rows.precision is None:
            return solve_quickly(rows)
        again = solve_again(rows, last) if self.lowest and last is not None else None
        return solve_thoroughly(rows) if again is None else again

    def _measurement(self, found: list[SolvedRows]) -> Measurement:
        """Return the input that the groups found together."""
        return Measurement(
            torch.cat([f.value for f in found]).view(self.input_shape),
            torch.cat([f.error for f in found]).view(self.input_shape),
            found[0].precision if len(found) == 1 and not self.lowest else None,
            error_reduction=max(1.0, *(1 / max(f.error_factor, TINY) for f in found)),
        )

    def _report(self, groups: list[Rows], found: list[SolvedRows]) -> LayerReport:
        """Return how well the groups determined the input, the worst of them counting."""
        return LayerReport(
            self.name, sum(rows.count for rows in groups), sum(f.value.numel() for f in found),
            max(f.condition for f in found), max(f.residual for f in found),
            all(f.determined for f in found),
        )  # fmt: skip

    def _delta_in(self, delta: Tensor, error: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return ``∂L/∂x = Kᵀ ∗ δ`` (C, H, W) and its error, from that of δ and from rounding."""
        weight, groups = self.layer.weight.detach().double(), self.layer.groups
        before = self.geometry.transposed(delta[None], weight, groups)[0]
        moved = self.geometry.transposed(error.square()[None], weight.square(), groups)[0]
        return before, moved.sqrt() + 4 * eps * (before.abs() + before.abs().mean())
