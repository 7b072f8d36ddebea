"""Fully connected layers, inverted by ``G = ∂L/∂W = δ xᵀ`` (§4.2, Eq. 6 and 7).

The paper divides one row of G by one entry of δ. Here many rows are averaged: ``x = Gᵀδ/‖δ‖²``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from softleak.core.share import GradientShare
from softleak.inversion.state import (
    Inverted,
    LayerReport,
    LayerState,
    Measurement,
    Tangent,
    combined,
    gradient,
)
from softleak.numerics.least_squares import TINY

# The search for the scale that puts a vector on the grid of a floating-point type.
FEWEST_ENTRIES = 32  # fewer could all lie on the grid by chance
MOST_ENTRIES = 512  # more take longer and are hardly surer
ENTRY_ERROR = 1 / 8  # of the spacing: the largest error with which an entry still counts
TRIALS_PER_SPACING = 6  # scales that are tried while the largest entries move by one spacing
WINDOW = 6.0  # standard errors of the scale that are searched on either side
MOST_TRIALS = 1 << 14  # a scale that needs more is too uncertain for the grid to tell it
LEAST_SCORE = 0.6  # the mean of ``cos 2π(x/spacing)``: one on the grid, zero by chance
LEAD = 6.0  # standard errors by which the best score must exceed that of any other scale
FINEST_SPACING = 1e-12  # the finest relative spacing that computations in float64 resolve


class Scale(NamedTuple):
    """The factor by which to multiply a vector, and the relative error that remains."""

    factor: float
    error: float


def scale_on_grid(x: Tensor, error: Tensor, scale_error: float, dtype: torch.dtype) -> Scale | None:
    """Return the factor near one that puts all of ``x`` on the grid of a floating-point type.

    The numbers (n,) lie on the grid but for one common factor, known to ``scale_error``, and the
    ``error`` (n,) that each has by itself. The answer is None if no factor stands out.
    """
    spacing = torch.finfo(dtype).eps / 2  # relative, for the largest numbers of an octave
    margin = 2 * TRIALS_PER_SPACING
    if spacing < FINEST_SPACING or scale_error >= 1:
        return None
    steps = math.ceil(TRIALS_PER_SPACING * WINDOW * scale_error / spacing) + margin
    if 2 * steps > MOST_TRIALS:
        return None
    clear = (error <= ENTRY_ERROR * spacing * x.abs()) & (x != 0)
    points = _grid_units(x[clear], spacing)
    if len(points) < FEWEST_ENTRIES:
        return None
    tried = torch.arange(-steps, steps + 1, dtype=x.dtype, device=x.device)
    tried = tried * spacing / TRIALS_PER_SPACING
    scores = torch.cos(2 * math.pi * (points + points * tried[:, None]))
    best = int(scores.mean(1).argmax())
    if float(scores[best].mean()) < LEAST_SCORE or not _stands_out(scores, best):
        return None
    moved = points * (1 + tried[best])
    off = moved.round() - moved
    more = (moved @ off) / moved.square().sum()
    left = (off - more * moved).norm() / moved.norm() / len(moved) ** 0.5
    return Scale(float((1 + tried[best]) * (1 + more)), float(left))


def _grid_units(x: Tensor, spacing: float) -> Tensor:
    """Return a few hundred different entries, each in units of the spacing around it."""
    octave = torch.frexp(x).exponent - 1
    points = (x / torch.ldexp(torch.full_like(x, 2 * spacing), octave)).sort().values
    points = points[points.diff(prepend=points[:1] - 1) > 0.5]
    return points[:: len(points) // MOST_ENTRIES + 1]


def _stands_out(scores: Tensor, best: int) -> bool:
    """Tell whether one scale leads all others outside of its own peak.

    ``scores`` (trials, entries) is the cosine of every entry at every scale; the lead is measured
    in standard errors of the mean over entries.
    """
    rank = torch.arange(len(scores), device=scores.device)
    ahead = (scores[best] - scores)[(rank - best).abs() > TRIALS_PER_SPACING / 2]
    errors = ahead.std(1) / scores.shape[1] ** 0.5
    return bool((ahead.mean(1) > LEAD * errors).all())


@dataclass(frozen=True, eq=False)
class Linear:
    """A fully connected layer of a chain."""

    name: str  # the layer's name in the model
    weight: Tensor  # its weight W (outputs, inputs), in the model's precision
    has_bias: bool  # whether it has a bias, whose gradient is δ itself
    lowest: bool = False  # whether no layer below needs ``∂L/∂x``, which is then not computed
    # How many rows of G are used, those of the largest |δ|. More would take time and hardly add
    # precision.
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
