"""A bias, ReLU, global average pooling, then the head: ResNets.

The ratios ``g_c / (Wᵀu)_c`` lie on a lattice of spacing ``τ/n``, their greatest common divisor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.factors import Factors
from softleak.head import Head
from softleak.labels.evidence.relation import (
    TINY,
    Blurred,
    Estimate,
    least_squares,
)

ON_LATTICE = 0.02  # root mean square distance from a lattice point, in units of its spacing
HEARD = 0.05  # channels with a smaller part of the largest |Wᵀδ| have a ratio full of rounding
CHANNELS = 16  # fewer could lie on a coarser lattice by chance


@dataclass(frozen=True)
class Lattice:
    """``g_c = h (Wᵀδ)_c k_c / n``: k of n positions active, averaged by global pooling.

    ``gain`` is ``h``, one but for an affine layer in between, such as a fresh BatchNorm behind a
    convolution's bias. ``accuracy`` is the relative error of ``τ`` seen on probes.
    """

    parameter: str
    positions: int
    gain: float = 1.0
    accuracy: float = 0.0

    @property
    def explanation(self) -> str:
        return f"a bias gradient on the lattice of k/{self.positions} active positions"

    @property
    def coarsest(self) -> float:
        return ON_LATTICE / self.positions

    def solve(self, g: Tensor, head: Head, factors: Factors) -> Estimate:
        n = self.positions
        d = self.gain * head.back(factors.u)
        ratio = g / torch.where(d == 0, TINY, d)
        heard = d.abs() >= HEARD * d.abs().amax(-1, keepdim=True)
        loudest = torch.where(heard, g.abs(), -1).argmax(-1, keepdim=True)
        k = torch.arange(1, n + 1, dtype=g.dtype, device=g.device)
        tau = ratio.gather(1, loudest) * n / k  # (N, n): that channel has k active positions
        counts = n * ratio[:, None] / torch.where(tau == 0, TINY, tau)[..., None]
        nearest = counts.round().clamp(0, n)
        off = torch.where(heard[:, None], counts - nearest, 0.0).square().sum(-1)
        off = (off / heard.sum(-1, keepdim=True)).sqrt()
        # The coarsest lattice that fits: every finer one fits as well.
        chosen = torch.where(off <= ON_LATTICE, k, n + off / (1 + off)).argmin(-1, keepdim=True)
        count = nearest.gather(1, chosen[..., None].expand(-1, -1, d.shape[-1]))[:, 0]
        estimate = least_squares(
            torch.where(heard, g, 0.0),
            torch.where(heard, d * count / n, 0.0),
            factors,
            head.largest_weight,
        )
        distance = off.gather(1, chosen)[:, 0]
        misfit = torch.where(distance <= ON_LATTICE, estimate.misfit, distance)
        # Too few channels that speak could lie on any lattice: they neither prove nor refute.
        spoken = ((g != 0) & heard).sum(-1)
        misfit = torch.where(spoken >= CHANNELS, misfit, math.inf)
        # Nor do ratios whose denominators are off by a part of the lattice's spacing.
        columns = float(head.W.norm(dim=0).max())
        blurred = columns * factors.absolute / factors.sigma
        sharp = blurred <= ON_LATTICE / n * HEARD * d.abs().amax(-1)
        misfit = torch.where(sharp, misfit, math.inf)
        return Estimate(estimate.scalar, estimate.error, misfit)

    def notices(self, factors: Factors) -> Tensor:
        """Always: two samples' counts, weighed by their scalars, lie on no lattice."""
        return torch.ones_like(factors.sigma, dtype=torch.bool)

    def log_likelihood(self, g: Tensor, seen: Blurred, tau: Tensor) -> Tensor:
        """Every number of active positions is as likely, in each channel."""
        part = torch.arange(self.positions + 1, dtype=g.dtype, device=g.device) / self.positions
        return torch.stack([self._at(g, seen, t, part) for t in tau])

    def _at(self, g: Tensor, seen: Blurred, t: Tensor, part: Tensor) -> Tensor:
        variance = seen.noise**2 + t.square() * seen.d_variance[:, None] * part.square()
        rest = g[:, None] - t * self.gain * seen.d[:, None] * part
        return seen.density(rest, variance).logsumexp(-1).sum()
