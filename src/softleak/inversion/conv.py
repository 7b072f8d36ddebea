"""A convolution's input from its output and its weight gradient: both are linear in it.

Forward rows ``K ∗ h + b = z``, weighted by how well ``z`` is known, and gradient rows
``∂L/∂K = δ ⋆ h``, weighted by rounding. Groups are problems of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softleak.inversion.least_squares import Solution, solve_normal
from softleak.inversion.state import Known
from softleak.inversion.step import Inverted, LayerReport
from softleak.share import GradientShare

TINY = 1e-300


@dataclass(frozen=True, eq=False)
class Conv:
    """A convolution of a chain, with the part of its inversion that no image changes.

    ``patches`` (L, Ci·k) says which input entries each output position sees, ``n`` standing for
    padding; ``plane`` (L, k) the same within one channel.
    """

    name: str
    layer: nn.Conv2d
    input_shape: tuple[int, int, int]
    patches: Tensor
    plane: Tensor

    @classmethod
    def of(cls, name: str, layer: nn.Conv2d, input_shape: tuple[int, int, int]) -> Conv:
        """Prepare a layer for inputs (C, H, W)."""
        _, height, width = input_shape
        channels = layer.in_channels // layer.groups
        seen = [_patches(layer, (c, height, width)) for c in (channels, 1)]
        return cls(name, layer, input_shape, *seen)

    def back(self, out: Known, share: GradientShare) -> Inverted:
        layer = self.layer
        eps = share.resolution(f"{self.name}.weight", layer.weight.dtype)
        delta, error = out.delta, out.delta_error
        g = share[f"{self.name}.weight"].double()
        g_error = self._gradient_error(g, delta, error, eps)
        known = out.error + 4 * eps * out.value.abs()
        parts = (layer.weight.detach().double(), self._forward(out), known, delta, g, g_error)
        split = zip(*(part.chunk(layer.groups) for part in parts), strict=True)
        groups = [_Group(self, *each) for each in split]
        found = [group.solve() for group in groups]
        value = torch.cat([s.value for s in found]).view(self.input_shape)
        # Rows that miss by more than their errors say that the errors are larger than assumed.
        residual = max(group.residual(s.value) for group, s in zip(groups, found, strict=True))
        bars = torch.cat([s.error for s in found]).view(self.input_shape) * max(1.0, residual)
        before, before_error = self._delta(delta, error, eps)
        report = LayerReport(
            self.name,
            int(out.error.isfinite().sum()) + g.numel(),
            value.numel(),
            max(s.condition for s in found),
            residual,
            all(s.determined for s in found),
        )
        return Inverted(Known(value, bars, before, before_error), report)

    def _forward(self, out: Known) -> Tensor:
        bias = self.layer.bias
        return out.value if bias is None else out.value - bias.detach().double()[:, None, None]

    def _gradient_error(self, g: Tensor, delta: Tensor, error: Tensor, eps: float) -> Tensor:
        """(Co,) of a weight gradient's entries: rounding, and δ's own error times the input."""
        largest = g.flatten(1).abs().amax(1)
        size = delta.flatten(1).norm(dim=1).clamp_min(TINY)
        input_size = (largest / size).amax() / delta[0].numel() ** 0.5
        rounding = 2 * eps * (largest + 1e-3 * largest.amax())
        return rounding.hypot(error.flatten(1).norm(dim=1) * input_size) + TINY

    def _delta(self, delta: Tensor, error: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """``∂L/∂h`` and its error."""
        weight = self.layer.weight.detach().double()
        before = _transpose(self.layer, delta, weight, self.input_shape)
        moved = _transpose(self.layer, error.square(), weight.square(), self.input_shape).sqrt()
        return before, moved + 4 * eps * (before.abs() + before.abs().mean())


@dataclass(frozen=True, eq=False)
class _Group:
    """The normal equations of one group: kernel (Co, Ci, kh, kw), outputs and their errors."""

    conv: Conv
    kernel: Tensor
    z: Tensor
    z_error: Tensor
    delta: Tensor
    g: Tensor
    g_error: Tensor

    @property
    def channels(self) -> int:
        return self.kernel.shape[1]

    def solve(self) -> Solution:
        n, plane = self.channels * self._area, self._gradient_rows()
        weight = self.z_error.square().clamp_min(TINY).reciprocal().flatten(1)  # (Co, L)
        flat = self.kernel.flatten(1)
        blocks = torch.einsum("ol,oi,oj->lij", weight, flat, flat)
        seen = self.conv.patches
        normal = torch.zeros((n + 1) ** 2, dtype=torch.double, device=flat.device)
        where = (seen[:, :, None] * (n + 1) + seen[:, None, :]).flatten()
        normal = normal.index_add_(0, where, blocks.flatten()).view(n + 1, n + 1)[:n, :n]
        block = plane.T @ plane
        for start in range(0, n, self._area):
            normal[start : start + self._area, start : start + self._area] += block
        zero = torch.zeros(n, dtype=torch.double, device=flat.device)
        return solve_normal(normal, self._slack(zero, plane), lambda x: self._slack(x, plane))

    def residual(self, x: Tensor) -> float:
        """Root mean square of all rows' misfits, in units of their errors."""
        forward, gradient = self._misfits(x, self._gradient_rows())
        count = int(self.z_error.isfinite().sum()) + gradient.numel()
        return float((forward.square().sum() + gradient.square().sum()).div(count).sqrt())

    @property
    def _area(self) -> int:
        return self.conv.input_shape[1] * self.conv.input_shape[2]

    def _gradient_rows(self) -> Tensor:
        """(Co·k, H·W): what weight gradients see of one input channel, in units of their error."""
        seen = self.conv.plane.T  # (k, L)
        outputs = self.delta.flatten(1)[:, None].expand(-1, len(seen), -1)
        rows = self.delta.new_zeros(len(self.delta), len(seen), self._area + 1)
        rows = rows.scatter_add_(2, seen.expand(len(self.delta), -1, -1), outputs)[..., :-1]
        return (rows / self.g_error[:, None, None]).flatten(0, 1)

    def _misfits(self, x: Tensor, plane: Tensor) -> tuple[Tensor, Tensor]:
        layer, shape = self.conv.layer, (1, self.channels, *self.conv.input_shape[1:])
        z = F.conv2d(x.view(shape), self.kernel, None, layer.stride, layer.padding, layer.dilation)
        forward = torch.where(self.z_error.isfinite(), (self.z - z[0]) / self.z_error, 0.0)
        told = (self.g / self.g_error[:, None, None, None]).transpose(0, 1).flatten(1)
        return forward, told - x.view(self.channels, -1) @ plane.T

    def _slack(self, x: Tensor, plane: Tensor) -> Tensor:
        """``Aᵀ(b − A x)`` over all rows, weighted."""
        forward, gradient = self._misfits(x, plane)
        layer = self.conv.layer
        pulled = torch.where(self.z_error.isfinite(), forward / self.z_error, 0.0)
        shape = (self.channels, *self.conv.input_shape[1:])
        back = _transpose(layer, pulled, self.kernel, shape, groups=1)
        return back.flatten() + (gradient @ plane).flatten()


def _transpose(
    layer: nn.Conv2d, out: Tensor, weight: Tensor, shape: tuple[int, ...], groups: int | None = None
) -> Tensor:
    """The transposed convolution onto an input of a given shape (C, H, W)."""
    groups = layer.groups if groups is None else groups
    found: Tensor = torch.ops.aten.convolution_backward(
        out[None], out.new_zeros(1, *shape), weight, None, layer.stride, layer.padding,
        layer.dilation, False, [0, 0], groups, [True, False, False],
    )[0]  # fmt: skip
    return found[0]


def _patches(layer: nn.Conv2d, shape: tuple[int, int, int]) -> Tensor:
    """(L, C·k) indices of the input entries under each output position, C·H·W for padding."""
    count = shape[0] * shape[1] * shape[2]
    index = torch.arange(1, count + 1, dtype=torch.double, device=layer.weight.device)
    padding = layer.padding if isinstance(layer.padding, tuple) else (0, 0)
    unfolded = F.unfold(
        index.view(1, *shape), layer.kernel_size, layer.dilation, padding, layer.stride
    )
    seen = unfolded[0].T.long() - 1
    return torch.where(seen < 0, count, seen)
