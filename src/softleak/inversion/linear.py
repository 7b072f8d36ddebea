"""§4.2, Eq. 6–7, over many rows instead of one index: ``x = Gᵀδ/‖δ‖²``."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

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
        weight = gradient(share, f"{self.name}.weight", self.weight)
        eps = share.resolution(f"{self.name}.weight", self.weight.dtype)
        delta, error = out.delta, out.own_delta_error
        drift = out.drift
        if self.has_bias and f"{self.name}.bias" in share:
            bias = gradient(share, f"{self.name}.bias", delta).double()
            own = share.resolution(f"{self.name}.bias", self.weight.dtype) * bias.abs() + TINY
            own = own + share.noise(f"{self.name}.bias")
            delta, error = combined(delta, error.hypot(drift * delta), bias, own)
            drift = min(drift, float((own * bias).norm() / bias.square().sum().clamp_min(TINY)))
        rows = delta.abs().topk(min(ROWS, len(delta))).indices
        d, G = delta[rows], weight[rows].double()
        size = d.square().sum()
        if not size > TINY:
            return self._nothing(out)
        x = (d @ G) / size
        # What the rows say of δ, but for its scale, tells how far off it is, and they themselves.
        said = (G @ x) / x.square().sum().clamp_min(TINY)
        off = float((d * (d - said)).norm() / size)
        noise = share.noise(f"{self.name}.weight")
        expected = (eps * G.norm()).hypot(noise * G.new_tensor(G.numel()).sqrt()).clamp_min(TINY)
        rest = float((G - said[:, None] * x).norm() / expected)
        rounding = eps * (d.square() @ G.square()).sqrt() / size
        rounding = rest * rounding.hypot(noise / size.sqrt())
        bars = rounding.hypot(math.hypot(off, drift) * x.abs()) + TINY
        report = LayerReport(self.name, len(delta) * len(x), len(x), 1.0, rest, True)
        known = Known.straight(x, bars, *self._delta(delta, error, eps), drift)
        return Inverted(known, report)

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
