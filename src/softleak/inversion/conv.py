"""A convolution's input from its output and its gradients: all are linear in it, or nearly.

Forward rows are weighted by how well the output is known, gradient rows by rounding. Groups are
problems of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from softleak.inversion.geometry import Geometry
from softleak.inversion.rows import Rows
from softleak.inversion.solve import Solved, quick, thorough
from softleak.inversion.state import TINY, Known
from softleak.inversion.step import Inverted, LayerReport, gradient
from softleak.share import GradientShare

REACH = 10.0  # times its size: where an input may be expected to be if no row tells
FAINT = 1e-9  # of the largest |δ|: channels that say nothing of the input's size
ROUNDS = 3  # of linearisation, at most


@dataclass(frozen=True, eq=False)
class Conv:
    """A convolution of a chain, with the part of its inversion that no image changes."""

    name: str
    layer: nn.Conv2d
    input_shape: tuple[int, int, int]
    geometry: Geometry
    quick: bool = False  # whether errors are taken as independent

    @classmethod
    def of(cls, name: str, layer: nn.Conv2d, input_shape: tuple[int, int, int]) -> Conv:
        """Prepare a layer for inputs (C, H, W)."""
        return cls(name, layer, input_shape, Geometry.of(layer, input_shape[1:]))

    def back(self, out: Known, share: GradientShare) -> Inverted:
        gradient(share, f"{self.name}.weight", self.layer.weight)
        for _ in range(ROUNDS):
            groups = self._rows(out, share)
            found = [self._solved(rows) for rows in groups]
            pairs = zip(groups, found, strict=True)
            moved = torch.cat([rows.moved(f.value) for rows, f in pairs]) + self._bias()
            better = None if out.again is None else out.again(moved)
            if better is None:
                break
            out = better
        value = torch.cat([f.value for f in found])
        error = torch.cat([f.error for f in found])
        # δ follows the output, which is now better known than before.
        delta = out.delta + out.bend * (moved - out.value)
        eps = share.resolution(f"{self.name}.weight", self.layer.weight.dtype)
        known = Known.straight(
            value.view(self.input_shape), error.view(self.input_shape),
            *self._delta(delta, out.delta_error, eps), out.drift,
        )  # fmt: skip
        report = LayerReport(
            self.name,
            sum(rows.count for rows in groups),
            value.numel(),
            max(f.condition for f in found),
            max(f.residual for f in found),
            all(f.determined for f in found),
        )
        precision = found[0].precision if len(found) == 1 else None
        doubt = max(1.0, *(1 / max(f.factor, TINY) for f in found))
        return Inverted(known.with_precision(precision, doubt), report)

    def _rows(self, out: Known, share: GradientShare) -> list[Rows]:
        layer, groups = self.layer, self.layer.groups
        eps = share.resolution(f"{self.name}.weight", layer.weight.dtype)
        out = out.apart if self.quick else out
        input_size = self._input_size(out, share)
        g, g_error = self._gradients(out, share, eps, input_size)
        known = out.error + 4 * eps * out.value.abs()
        kernel = layer.weight.detach().double()
        parts = (kernel, out.value - self._bias(), known, out.delta, out.bend, g, g_error)
        split = zip(*(part.chunk(groups) for part in parts), strict=True)
        precision = out.precision if groups == 1 else None
        # The kernel, z and its error, δ and its bend, the gradients and their errors.
        rows = [Rows(self.geometry, k, z, e, d, b, told, off) for k, z, e, d, b, told, off in split]
        reach = REACH * input_size
        return [replace(r, precision=precision, told=out.told, reach=reach) for r in rows]

    def _solved(self, rows: Rows) -> Solved:
        return quick(rows) if self.quick and rows.precision is None else thorough(rows)

    def _bias(self) -> Tensor | float:
        bias = self.layer.bias
        return 0.0 if bias is None else bias.detach().double()[:, None, None]

    def _gradients(
        self, out: Known, share: GradientShare, eps: float, input_size: float
    ) -> tuple[Tensor, Tensor]:
        """Weight and bias gradients (Co, Ci·k+1) and their errors: rounding, and that of δ."""
        weight = gradient(share, f"{self.name}.weight", self.layer.weight).double().flatten(1)
        largest = weight.abs().amax(1)
        size = out.delta.flatten(1).norm(dim=1).clamp_min(TINY)
        rounding = 2 * eps * (largest + 1e-3 * largest.amax()) + share.noise(f"{self.name}.weight")
        off = out.delta_error.hypot(out.drift * out.delta).flatten(1).norm(dim=1)
        error = (rounding.hypot(off * input_size) + TINY)[:, None].expand_as(weight)
        name = f"{self.name}.bias"
        if self.layer.bias is None or name not in share:
            nothing = torch.zeros_like(size)[:, None]
            return torch.cat([weight, nothing], 1), torch.cat([error, nothing + torch.inf], 1)
        bias = gradient(share, name, self.layer.bias).double()
        own = (2 * eps * (bias.abs() + size) + share.noise(name)).hypot(off) + TINY
        return torch.cat([weight, bias[:, None]], 1), torch.cat([error, own[:, None]], 1)

    def _input_size(self, out: Known, share: GradientShare) -> float:
        """Roughly the root mean square of the input: what the largest gradient asks for."""
        weight = gradient(share, f"{self.name}.weight", self.layer.weight).double()
        largest, size = weight.flatten(1).abs().amax(1), out.delta.flatten(1).norm(dim=1)
        told = size > FAINT * size.max()
        if not told.any():
            return 1.0
        positions: float = out.delta[0].numel() ** 0.5
        return float((largest[told] / size[told]).amax()) / positions or 1.0

    def _delta(self, delta: Tensor, error: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """``∂L/∂h`` and its error."""
        weight, groups = self.layer.weight.detach().double(), self.layer.groups
        before = self.geometry.transposed(delta[None], weight, groups)[0]
        moved = self.geometry.transposed(error.square()[None], weight.square(), groups)[0]
        return before, moved.sqrt() + 4 * eps * (before.abs() + before.abs().mean())
