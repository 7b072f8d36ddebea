"""This module inverts fully connected layers, ``G = ∂L/∂W = δ xᵀ`` (§4.2, Eq. 6 and 7).

The paper divides one row of G by one entry of δ. Here many rows are averaged: ``x = Gᵀδ/‖δ‖²``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.inversion.grid import scale_on_grid
from softleak.inversion.state import TINY, LayerState, Measurement, combined
from softleak.inversion.step import Inverted, LayerReport, gradient
from softleak.inversion.tangent import Tangent
from softleak.share import GradientShare


@dataclass(frozen=True, eq=False)
class Linear:
    """This is a fully connected layer of a chain.

    Attributes:
        name: The layer's name in the model.
        weight: Its weight W (outputs, inputs), in the model's precision.
        has_bias: Whether it has a bias, whose gradient is δ itself.
        lowest: Whether no layer below needs ``∂L/∂x``, which is then not computed.
        rows: How many rows of G are used, those of the largest |δ|. More would take time and
            hardly add precision.
    """

    name: str
    weight: Tensor
    has_bias: bool
    lowest: bool = False
    rows: int = 128

    def back(
        self, out: LayerState, share: GradientShare, tangent: Tangent | None = None
    ) -> Inverted:
        name = f"{self.name}.weight"
        weight = gradient(share, name, self.weight)
        eps, noise = share.resolution(name, self.weight.dtype), share.noise(name)
        delta, delta_error, scale_error = self._delta_out(out, share)
        rows = delta.abs().topk(min(self.rows, len(delta))).indices
        d, G = delta[rows], weight[rows].double()
        size = d.square().sum()
        if not size > TINY:
            return self._unknown(out.sensitivity.scale_error)
        x = (d @ G) / size
        # The rows give δ as well, but for its scale. The difference tells the error of δ, and what
        # δ xᵀ leaves of the rows tells how large their own errors are.
        d_rows = (G @ x) / x.square().sum().clamp_min(TINY)
        off = math.hypot(float((d * (d - d_rows)).norm() / size), scale_error)
        expected = (eps * G.norm()).hypot(noise * G.new_tensor(G.numel()).sqrt()).clamp_min(TINY)
        residual = float((G - d_rows[:, None] * x).norm() / expected)
        rounding = eps * (d.square() @ G.square()).sqrt() / size
        rounding = residual * rounding.hypot(noise / size.sqrt())
        scale = scale_on_grid(x, rounding, off, weight.dtype)
        if scale is not None:
            x, delta = x * scale.factor, delta / scale.factor
            off = scale_error = scale.error
        report = LayerReport(self.name, len(delta) * len(x), len(x), 1.0, residual, True)
        measurement = Measurement(x, rounding.hypot(off * x.abs()) + TINY)
        below = self._delta_in(delta, delta_error, eps)
        return Inverted(LayerState.uncoupled(measurement, *below, scale_error), report)

    def _delta_out(self, out: LayerState, share: GradientShare) -> tuple[Tensor, Tensor, float]:
        """Return δ (outputs,), its errors and the relative error of its scale.

        The walk's δ is averaged with the gradient of the bias, which is δ as well.
        """
        delta, error = out.sensitivity.delta, out.delta_error()
        walked = out.sensitivity.scale_error
        name = f"{self.name}.bias"
        if not self.has_bias or name not in share:
            return delta, error, walked
        bias = gradient(share, name, delta).double()
        own = share.resolution(name, self.weight.dtype) * bias.abs() + TINY + share.noise(name)
        scale_error = float((own * bias).norm() / bias.square().sum().clamp_min(TINY))
        both = combined(delta, error.hypot(walked * delta), bias, own)
        return *both, min(walked, scale_error)

    def _unknown(self, scale_error: float) -> Inverted:
        """Return an unknown input: where δ is zero, no row says anything."""
        x = torch.zeros_like(self.weight[0], dtype=torch.double)
        report = LayerReport(self.name, 0, len(x), math.inf, 0.0, False)
        measurement = Measurement(x, x + math.inf)
        return Inverted(LayerState.uncoupled(measurement, x, x, scale_error), report)

    def _delta_in(self, delta: Tensor, error: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return ``∂L/∂x = Wᵀδ`` (inputs,) and its error, from that of δ and from rounding."""
        if self.lowest:
            nothing = torch.full_like(self.weight[0], torch.nan, dtype=torch.double)
            return nothing, nothing
        before = delta.to(self.weight.dtype) @ self.weight
        before = before.double()
        relative = error.norm() / delta.norm().clamp_min(TINY)
        spread = before.square().mean().sqrt()
        return before, relative * spread + 2 * eps * (before.abs() + spread)
