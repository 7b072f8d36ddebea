"""This module finds a convolution's input from its output and from its gradients.

All of them are linear in the input, or nearly (docs/method.md, "The input, layer by layer").
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor, nn

from softleak.inversion.conv_rows import ConvRows
from softleak.inversion.geometry import Geometry
from softleak.inversion.rows import Rows
from softleak.inversion.solve_rows import SolvedRows, solve_again, solve_quickly, solve_thoroughly
from softleak.inversion.state import TINY, LayerState, Measurement
from softleak.inversion.step import Inverted, LayerReport, gradient
from softleak.inversion.tangent import Tangent
from softleak.share import GradientShare


@dataclass(frozen=True)
class ConvSettings:
    """These are the settings of a convolution's inversion.

    Attributes:
        most_inputs: A convolution with more inputs than this is refused, because a matrix of
            their square is held in memory. It is 3·64·64.
        linearisations: How often the activation above is linearised and the rows solved, at most.
    """

    most_inputs: int = 12288
    linearisations: int = 3


CONV_SETTINGS = ConvSettings()


@dataclass(frozen=True, eq=False)
class Conv:
    """This is a convolution of a chain, with what the inversions of all shares have in common.

    Attributes:
        name: The layer's name in the model.
        layer: The layer.
        input_shape: The shape (C, H, W) of its input.
        geometry: Where it looks.
        quick: Whether all errors are taken as independent, which is cheaper.
        lowest: Whether no layer below needs the precision of the input.
        settings: The settings of the inversion.
    """

    name: str
    layer: nn.Conv2d
    input_shape: tuple[int, int, int]
    geometry: Geometry
    quick: bool = False
    lowest: bool = False
    settings: ConvSettings = CONV_SETTINGS

    @classmethod
    def of(cls, name: str, layer: nn.Conv2d, input_shape: tuple[int, int, int]) -> Conv:
        """Return a layer prepared for inputs of one shape (C, H, W)."""
        return cls(name, layer, input_shape, Geometry.of(layer, input_shape[1:]))

    def back(
        self, out: LayerState, share: GradientShare, tangent: Tangent | None = None
    ) -> Inverted:
        gradient(share, f"{self.name}.weight", self.layer.weight)
        builder = ConvRows(self.name, self.layer, self.geometry)
        found: list[SolvedRows] = []
        for _ in range(self.settings.linearisations):
            groups = builder.of(out.with_independent_errors() if self.quick else out, share)
            found = [self._solved(*pair) for pair in zip_longest(groups, found)]
            pairs = zip(groups, found, strict=True)
            z = torch.cat([rows.forward(f.value) for rows, f in pairs]) + builder.bias
            tangent = None if tangent is None else tangent.moved(z)
            if tangent is None:
                break
            out = tangent.state()
        # The output is now better known than before, and δ moves with it.
        above = out.sensitivity
        delta = above.delta + above.curvature * (z - out.measurement.value)
        below = self._delta_in(delta, above.error, builder.resolution(share))
        state = LayerState.uncoupled(self._measurement(found), *below, above.scale_error)
        return Inverted(state, self._report(groups, found))

    def least_error(self, out: LayerState, share: GradientShare) -> Tensor:
        """Return the standard error (C, H, W) that each entry had if all others were known.

        It takes no system to be solved, and no pass can predict less, but for rows that agree
        better than expected.
        """
        builder = ConvRows(self.name, self.layer, self.geometry)
        groups = builder.of(out.with_independent_errors(), share)
        precision = torch.cat([rows.normal_diagonal() for rows in groups])
        return precision.rsqrt().view(self.input_shape)

    def _solved(self, rows: Rows, last: SolvedRows | None) -> SolvedRows:
        """Return the solution of one group; averages always need the thorough solver.

        Args:
            rows: The rows of the group.
            last: Their solution before the activation above was linearised again.
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
            self.name,
            sum(rows.count for rows in groups),
            sum(f.value.numel() for f in found),
            max(f.condition for f in found),
            max(f.residual for f in found),
            all(f.determined for f in found),
        )

    def _delta_in(self, delta: Tensor, error: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return ``∂L/∂x = Kᵀ ∗ δ`` (C, H, W) and its error, from that of δ and from rounding."""
        weight, groups = self.layer.weight.detach().double(), self.layer.groups
        before = self.geometry.transposed(delta[None], weight, groups)[0]
        moved = self.geometry.transposed(error.square()[None], weight.square(), groups)[0]
        return before, moved.sqrt() + 4 * eps * (before.abs() + before.abs().mean())
