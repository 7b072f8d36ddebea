"""Evidence of a bias before ReLU, global average pooling and the head, as in
ResNets.

The ratios ``g_c / (Wᵀu)_c`` lie on a lattice of spacing ``τ/n``, which is their approximate
greatest common divisor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.core.factors import SMALLEST_NORMAL, Factors
from softleak.core.head import Head
from softleak.labels.evidence.relation import Blurred, Estimate, Probe, least_squares

# When ratios count as lying on a lattice.
# The root mean square distance from lattice points, in units of their spacing, up to which ratios
# lie on the lattice.
LATTICE_DISTANCE = 0.02
# Channels with a smaller part of the largest ``|Wᵀδ|`` are left out, because their ratios are full
# of rounding.
LATTICE_HEARD = 0.05
# The number of channels that have to speak; fewer could lie on a coarser lattice by chance.
LATTICE_CHANNELS = 16
# The distance from lattice points, in units of their spacing, up to which a lattice is fitted at
# all.
LATTICE_NEARBY = 0.25


@dataclass(frozen=True)
class Lattice:
    """The relation ``g_c = h (Wᵀδ)_c k_c / n``: in channel c, k of n positions are active.

    Attributes:
        parameter: the name of the bias in a share.
        positions: n, the number of positions that global pooling averages.
        gain: h, which differs from one if an affine layer lies in between, such as a fresh
            BatchNorm behind a convolution's bias.
        accuracy: the relative error of ``τ`` that was seen on probes.
    """

    parameter: str
    positions: int
    gain: float = 1.0
    accuracy: float = 0.0

    @property
    def explanation(self) -> str:
        """What the relation is, in one line for people."""
        return f"a bias gradient on the lattice of k/{self.positions} active positions"

    @property
    def coarsest(self) -> float:
        """The relative error of a gradient beyond which the relation says nothing."""
        return LATTICE_DISTANCE / self.positions

    def solve(self, g: Tensor, head: Head, factors: Factors) -> Estimate:
        """Estimate ``τ``: the loudest channel has 1…n active positions, and one count fits all."""
        n = self.positions
        d = self.gain * head.back(factors.u)
        ratio = g / torch.where(d == 0, SMALLEST_NORMAL, d)
        heard = d.abs() >= LATTICE_HEARD * d.abs().amax(-1, keepdim=True)
        loudest = torch.where(heard, g.abs(), -1).argmax(-1, keepdim=True)
        k = torch.arange(1, n + 1, dtype=g.dtype, device=g.device)
        tau = ratio.gather(1, loudest) * n / k  # (N, n) if that channel has k active positions
        counts = n * ratio[:, None] / torch.where(tau == 0, SMALLEST_NORMAL, tau)[..., None]
        nearest = counts.round().clamp(0, n)
        off = torch.where(heard[:, None], counts - nearest, 0.0).square().sum(-1)
        off = (off / heard.sum(-1, keepdim=True)).sqrt()
        # The coarsest lattice that fits is taken, since every finer one fits as well.
        chosen = torch.where(off <= LATTICE_DISTANCE, k, n + off / (1 + off)).argmin(
            -1, keepdim=True
        )
        count = nearest.gather(1, chosen[..., None].expand(-1, -1, d.shape[-1]))[:, 0]
        estimate = least_squares(
            torch.where(heard, g, 0.0),
            torch.where(heard, d * count / n, 0.0),
            factors,
            head.largest_weight,
        )
        distance = off.gather(1, chosen)[:, 0]
        misfit = torch.where(distance <= LATTICE_DISTANCE, estimate.misfit, distance)
        # Too few channels could lie on any lattice, so they neither prove nor refute anything.
        spoken = ((g != 0) & heard).sum(-1)
        misfit = torch.where(spoken >= LATTICE_CHANNELS, misfit, math.inf)
        # Neither do ratios whose denominators are off by a part of the lattice's spacing.
        columns = float(head.W.norm(dim=0).max())
        blurred = columns * factors.absolute / factors.sigma
        sharp = blurred <= LATTICE_DISTANCE / n * LATTICE_HEARD * d.abs().amax(-1)
        misfit = torch.where(sharp, misfit, math.inf)
        return Estimate(estimate.scalar, estimate.error, misfit)

    def notices(self, factors: Factors) -> Tensor:
        """Return True: the counts of two samples, weighted by their scalars, lie on no lattice."""
        return torch.ones_like(factors.sigma, dtype=torch.bool)

    def log_likelihood(self, g: Tensor, seen: Blurred, tau: Tensor) -> Tensor:
        """Return the log likelihood, with all numbers of active positions equally likely."""
        part = torch.arange(self.positions + 1, dtype=g.dtype, device=g.device) / self.positions
        return torch.stack([self._at(g, seen, t, part) for t in tau])

    def _at(self, g: Tensor, seen: Blurred, t: Tensor, part: Tensor) -> Tensor:
        """Return the log likelihood () of one scalar, with ``part`` (n + 1,) the values of k/n."""
        variance = seen.noise**2 + t.square() * seen.d_variance[:, None] * part.square()
        rest = g[:, None] - t * self.gain * seen.d[:, None] * part
        return seen.density(rest, variance).logsumexp(-1).sum()


def fit_lattice(name: str, head: Head, runs: Sequence[Probe]) -> list[Lattice]:
    """Return the lattice whose gain explains some probes, if their ratios lie near one at all."""
    gradient, positions = runs[0].share[name], runs[0].positions.get(name, 1)
    if gradient.ndim != 1 or len(gradient) != head.W.shape[1] or positions < 2:
        return []
    if name == head.bias_name or not gradient.any():
        return []
    counts = torch.cat([positions * run.share[name].double() / run.d for run in runs])
    weight = torch.cat([run.d.abs() / run.d.abs().max() for run in runs])
    nearest = counts.round()
    heard = (weight > LATTICE_HEARD) & (nearest > 0)
    off = (counts - nearest)[heard]
    if not len(off) or float(off.abs().max()) > LATTICE_NEARBY:
        return []
    x, w = nearest[heard], weight[heard]
    gain = 1 + float((w * off * x).sum() / (w * x * x).sum())
    return [Lattice(name, positions, gain)]
