"""§4.2, Eq. 6–7, over many rows instead of one index: ``x = Gᵀδ/‖δ‖²``."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from softleak.inversion.state import Known, combined
from softleak.inversion.step import Inverted, LayerReport
from softleak.share import GradientShare

ROWS = 512  # of the largest |δ|: more would add time, not precision
TINY = 1e-300


@dataclass(frozen=True, eq=False)
class Linear:
    """A fully connected layer of a chain."""

    name: str
    weight: Tensor
    has_bias: bool

    def back(self, out: Known, share: GradientShare) -> Inverted:
        eps = share.resolution(f"{self.name}.weight", self.weight.dtype)
        delta, error = out.delta, out.all_delta_error
        if self.has_bias and f"{self.name}.bias" in share:
            bias = share[f"{self.name}.bias"].double()
            own = share.resolution(f"{self.name}.bias", self.weight.dtype)
            delta, error = combined(delta, error, bias, own * bias.abs() + TINY)
        rows = delta.abs().topk(min(ROWS, len(delta))).indices
        d, G = delta[rows], share[f"{self.name}.weight"][rows].double()
        size = d.square().sum().clamp_min(TINY)
        x = (d @ G) / size
        rounding = eps * (d.square() @ G.square()).sqrt() / size
        off = (d * error[rows]).norm() / size
        rest = (G - d[:, None] * x).norm() / (eps * G.norm()).clamp_min(TINY)
        report = LayerReport(
            self.name, len(delta) * len(x), len(x), 1.0, float(rest), bool(size > TINY)
        )
        # Rows that miss by more than rounding say that there is more than rounding.
        rounding = rounding * max(1.0, float(rest))
        bars = rounding.hypot(off * x.abs()) + TINY
        known = Known.straight(x, bars, *self._delta(delta, error, eps))
        return Inverted(known, report)

    def _delta(self, delta: Tensor, error: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """``Wᵀδ`` and its error: that of δ as a whole, and rounding."""
        before = delta.to(self.weight.dtype) @ self.weight
        before = before.double()
        share = error.norm() / delta.norm().clamp_min(TINY)
        spread = before.square().mean().sqrt()
        return before, share * spread + 2 * eps * (before.abs() + spread)
