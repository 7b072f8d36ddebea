"""§4.2, Eq. 6–7, over many rows instead of one index: ``x = Gᵀδ/‖δ‖²``."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.inversion.grid import scale_on_grid
from softleak.inversion.state import TINY, Known, combined
from softleak.inversion.step import Inverted, LayerReport, gradient
from softleak.share import GradientShare

ROWS = 128  # of the largest |δ|: more would add time, and hardly precision


@dataclass(frozen=True, eq=False)
class Linear:
    """A fully connected layer of a chain."""

    name: str
    weight: Tensor
    has_bias: bool
    lowest: bool = False  # nothing below asks for ``∂L/∂input``

    def back(self, out: Known, share: GradientShare) -> Inverted:
        name = f"{self.name}.weight"
        weight = gradient(share, name, self.weight)
        eps, noise = share.resolution(name, self.weight.dtype), share.noise(name)
        delta, error, drift = self._told(out, share)
        rows = delta.abs().topk(min(ROWS, len(delta))).indices
        d, G = delta[rows], weight[rows].double()
        size = d.square().sum()
        if not size > TINY:
            return self._nothing(out)
        x = (d @ G) / size
        # What the rows say of δ, but for its scale, tells how far off it is, and they themselves.
        said = (G @ x) / x.square().sum().clamp_min(TINY)
        off = math.hypot(float((d * (d - said)).norm() / size), drift)
        expected = (eps * G.norm()).hypot(noise * G.new_tensor(G.numel()).sqrt()).clamp_min(TINY)
        rest = float((G - said[:, None] * x).norm() / expected)
        rounding = eps * (d.square() @ G.square()).sqrt() / size
        rounding = rest * rounding.hypot(noise / size.sqrt())
        scale = scale_on_grid(x, rounding, off, weight.dtype)
        if scale is not None:
            x, delta, off, drift = x * scale.factor, delta / scale.factor, scale.error, scale.error
        report = LayerReport(self.name, len(delta) * len(x), len(x), 1.0, rest, True)
        bars = rounding.hypot(off * x.abs()) + TINY
        known = Known.straight(x, bars, *self._delta(delta, error, eps), drift)
        return Inverted(known, report)

    def _told(self, out: Known, share: GradientShare) -> tuple[Tensor, Tensor, float]:
        """``∂L/∂output``, which the bias's gradient is too: entries, their errors, their drift."""
        delta, error = out.delta, out.own_delta_error
        name = f"{self.name}.bias"
        if not self.has_bias or name not in share:
            return delta, error, out.drift
        bias = gradient(share, name, delta).double()
        own = share.resolution(name, self.weight.dtype) * bias.abs() + TINY + share.noise(name)
        drift = float((own * bias).norm() / bias.square().sum().clamp_min(TINY))
        both = combined(delta, error.hypot(out.drift * delta), bias, own)
        return *both, min(out.drift, drift)

    def _nothing(self, out: Known) -> Inverted:
        """Where no unit of the layer is active, no row says anything."""
        x = torch.zeros_like(self.weight[0], dtype=torch.double)
        report = LayerReport(self.name, 0, len(x), math.inf, 0.0, False)
        return Inverted(Known.straight(x, x + math.inf, x, x, out.drift), report)

    def _delta(self, delta: Tensor, error: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """``Wᵀδ`` and its error: that of δ as a whole, and rounding."""
        if self.lowest:
            nothing = torch.full_like(self.weight[0], torch.nan, dtype=torch.double)
            return nothing, nothing
        before = delta.to(self.weight.dtype) @ self.weight
        before = before.double()
        share = error.norm() / delta.norm().clamp_min(TINY)
        spread = before.square().mean().sqrt()
        return before, share * spread + 2 * eps * (before.abs() + spread)
