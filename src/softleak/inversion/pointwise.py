"""Pointwise activations, inverted: ``a = φ⁻¹(y)`` and ``∂L/∂a = φ' ∂L/∂y``, φ' from the output."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.inversion.activations import EDGE, Inverse
from softleak.inversion.state import TINY, Known
from softleak.inversion.step import Inverted
from softleak.share import GradientShare

SURE = 4.0  # errors: an output of a ReLU this far from zero is positive
FAR = 1.0  # how far from where it was linearised an activation is believed to be straight


@dataclass(frozen=True)
class Activation:
    """An activation layer of a chain."""

    name: str
    phi: Inverse

    def back(self, out: Known, share: GradientShare) -> Inverted:
        # What a ReLU has cut off is not known, and what is almost zero was probably cut off.
        hidden = (out.value <= SURE * out.doubt * out.error) & self.phi.cuts
        # An output too near an end of the range to tell is taken to be one error away from it.
        margin = out.error.clamp(EDGE, (self.phi.high - self.phi.low) / 4)
        y = out.value.maximum(self.phi.low + margin).minimum(self.phi.high - margin)
        y = torch.where(hidden, 0.0, y)
        return Inverted(self._around(out, torch.where(hidden, 0.0, self.phi.inverse(y)), hidden))

    def _around(self, out: Known, a: Tensor, hidden: Tensor) -> Known:
        """What the output says of the input near ``a``, to first order."""
        y = self.phi.forward(a)
        slope = self.phi.slope(y)
        bend = self.phi.curvature(y) * out.delta + slope.square() * out.bend
        steep = slope.clamp_min(TINY)
        off = torch.where(hidden, 0.0, (out.value - y) / steep).clamp(-FAR, FAR)

        def again(better: Tensor) -> Known | None:
            straight = y + slope * (better - a)
            missed = (self.phi.forward(better) - straight).abs() > out.error
            return self._around(out, better, hidden) if bool((missed & ~hidden).any()) else None

        return Known(
            a + off,
            torch.where(hidden | (slope <= 0), torch.inf, out.error / steep),
            out.delta * slope + bend * off,
            (slope * out.delta_error).hypot(self._kink(y, out, hidden)),
            bend,
            self._precision(out, slope),
            drift=out.drift,
            again=again,
        )

    def _kink(self, y: Tensor, out: Known, hidden: Tensor) -> Tensor:
        """What the error of ``y`` does to ``delta`` beyond the curvature: at a kink, the jump."""
        jump = (self.phi.slope(y + out.error) - self.phi.slope(y - out.error)) / 2
        smooth = self.phi.curvature(y) / self.phi.slope(y).clamp_min(TINY) * out.error
        return torch.where(hidden, 0.0, (jump - smooth) * out.delta).abs()

    def _precision(self, out: Known, slope: Tensor) -> Tensor | None:
        if out.precision is None or self.phi.cuts:
            return None
        d = slope.flatten()
        return (out.precision * d).mul_(d[:, None])
