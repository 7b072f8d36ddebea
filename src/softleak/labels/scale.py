"""Shares multiplied by an unknown ``κ > 0`` (clipping, unknown learning rate,
averaged loss).

``G = κ δ xᵀ``: with ``τ = κ t`` the feature ``(σ/τ) v`` and the probabilities do not depend on κ,
and the label lies on the segment ``y(s) = p − s u`` for some ``s = |t| > 0``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.core.families import Family
from softleak.labels.curve import CACHED_ENTRIES, Interval, density_for, misfit
from softleak.labels.pseudo import LARGEST, PseudoLabels

# What searchs the factor of a share.
# Parts of the segment that the search starts from.
FACTOR_SEARCH_STARTS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 1.0)
FACTOR_SEARCH_FEW_CLASSES = 64  # classes beyond which every start leads to the same place
FACTOR_SEARCH_FEWER_STARTS = (0.05, 0.5, 1.0)  # the starts with more classes than that
FACTOR_SEARCH_FINEST = 64  # grid points per factor e of |τ|
FACTOR_SEARCH_BEYOND = 1.001  # of the segment: a label on the edge of the simplex lies at its end
FACTOR_SEARCH_LARGEST_FACTOR = 1e6  # the largest factor anyone multiplies a share by
FACTOR_SEARCH_STEPS = 3  # steps: the distance from a family is piecewise linear along the segment
FACTOR_SEARCH_FACTORS = 33  # points of the segment at which other labels are looked for
FACTOR_SEARCH_SAME_FACTOR = 0.01  # relative: two factors further apart than this are different


@dataclass(frozen=True, eq=False)
class Segment:
    """``y(s) = p − s u`` of N clients at a known ``τ``: ``p``, ``u``, ``error`` (N, C)."""

    p: Tensor
    u: Tensor
    error: Tensor  # of p
    relative: float
    slack: Tensor  # the rounding of u's entries beyond their own size

    @classmethod
    def at(cls, pseudo: PseudoLabels, tau: Tensor, error: Tensor) -> Segment:
        """Return the segment behind ``τ`` (N,), itself known to within ``error`` (N,)."""
        p = pseudo.probabilities(tau[:, None])[:, 0]
        shift = pseudo.a.abs().amax(-1) * error / tau.square()
        rounding = pseudo.rounding(tau[:, None], p[:, None], p[:, None])[:, 0]
        moved = rounding + p * (1 - p) * shift[:, None]
        slack = pseudo.slack.expand(len(tau))
        return cls(p, pseudo.u * tau.sign()[:, None], moved, pseudo.relative, slack)

    def labels(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return self.p[:, None] - t[..., None] * self.u[:, None], t

    def errors(self, t: Tensor, y: Tensor) -> Tensor:
        known = self.error[:, None] + self.relative * (self.p[:, None] - y).abs()
        return known + self.slack[:, None, None] * t[..., None]

    @property
    def points_at_once(self) -> int:
        return max(CACHED_ENTRIES // self.u.shape[-1], 1)

    def logits(self) -> None:
        return None  # the prediction is known, and does not move

    def take(self, rows: Tensor) -> Segment:
        return Segment(
            self.p[rows], self.u[rows], self.error[rows], self.relative, self.slack[rows]
        )

    def interval(self) -> Interval:
        """Return the interval of ``s``, from nearly nothing to where an entry turns negative."""
        end = segment_end(self.p + self.error, self.u - self.slack[:, None]) * FACTOR_SEARCH_BEYOND
        everyone = torch.arange(len(end), device=end.device)
        density = density_for(self.p.shape[-1])
        return Interval(everyone, torch.ones_like(end), end * 1e-3, end, density)


@dataclass(frozen=True, eq=False)
class Rescaled:
    """Ŷ(τ) = p(τ) − s u with the ``s`` that brings it nearest to a family."""

    pseudo: PseudoLabels
    family: Family

    def labels(self, t: Tensor) -> tuple[Tensor, Tensor]:
        held = len(FACTOR_SEARCH_STARTS) * self.pseudo.u.shape[-1]
        columns = max(CACHED_ENTRIES // (held * len(t)), 1) if len(t) else t.shape[1]
        parts = [self._labels(part) for part in torch.split(t, max(columns, 1), 1)]
        y, s = zip(*parts, strict=True)
        return torch.cat(y, 1), torch.cat(s, 1)

    def _labels(self, t: Tensor) -> tuple[Tensor, Tensor]:
        p = self.pseudo.probabilities(t)
        u = self.pseudo.u[:, None] * t.sign()[..., None]
        blurred = p + self.pseudo.rounding(t, p, p), u - self.pseudo.slack[:, None, None]
        end = segment_end(*blurred).maximum(t.abs() / FACTOR_SEARCH_LARGEST_FACTOR)[..., None]
        starts = (
            FACTOR_SEARCH_STARTS
            if p.shape[-1] <= FACTOR_SEARCH_FEW_CLASSES
            else FACTOR_SEARCH_FEWER_STARTS
        )
        s = end * torch.tensor(starts, dtype=t.dtype, device=t.device)
        for _ in range(FACTOR_SEARCH_STEPS):
            rest, ahead = (self._rest(p, u, s * factor) for factor in (1.0, 1 + 1e-6))
            slope = (ahead - rest) / (1e-6 * s[..., None])
            step = (rest * slope).sum(-1) / slope.square().sum(-1).clamp_min(1e-300)
            s = torch.minimum((s - step).maximum(1e-3 * end), FACTOR_SEARCH_BEYOND * end)
        far = self._rest(p, u, s).norm(dim=-1) / s
        s = s.gather(-1, far.argmin(-1, keepdim=True))
        return p - s * u, s[..., 0]

    def _rest(self, p: Tensor, u: Tensor, s: Tensor) -> Tensor:
        y = p[..., None, :] - s[..., None] * u[..., None, :]
        return y - self.family.project(y)

    def errors(self, t: Tensor, y: Tensor) -> Tensor:
        return self.pseudo.rounding(t, self.pseudo.probabilities(t), y)

    def interval(self) -> Interval:
        """Return the interval of τ for any factor, up to where the softmax is entirely flat."""
        where = self.pseudo.interval(self.pseudo.a.abs().amax(-1) / self.pseudo.relative)
        # Two unknowns have wide minima.
        return replace(where, density=min(where.density, FACTOR_SEARCH_FINEST))

    @property
    def points_at_once(self) -> int:
        return self.pseudo.points_at_once

    def logits(self) -> Tensor:
        return self.pseudo.a

    def segment(self, t: Tensor) -> tuple[Segment, Tensor]:
        """Return the segments at the scalars ``t`` (N,), and the ``s`` (N,) of the labels there."""
        best = self.labels(t[:, None])[1][:, 0]
        return Segment.at(self.pseudo, t, torch.zeros_like(t)), best

    def take(self, rows: Tensor) -> Rescaled:
        return Rescaled(self.pseudo.take(rows), self.family)


def other_factors_fit(segment: Segment, family: Family, best: Tensor, fit: float) -> bool:
    """Return whether labels of a family lie on one of N segments apart from ``best`` (N,)."""
    where = segment.interval()
    steps = torch.linspace(0, 1, FACTOR_SEARCH_FACTORS, dtype=best.dtype, device=best.device)
    s = where.smallest[:, None] * (where.largest / where.smallest)[:, None] ** steps
    elsewhere = (s / best[:, None] - 1).abs() > FACTOR_SEARCH_SAME_FACTOR
    return bool((elsewhere & (misfit(segment, family, s) <= fit)).any())


def segment_end(p: Tensor, u: Tensor) -> Tensor:
    """Return the largest ``s`` (…) at which no entry of ``p − s u`` (…, C) is negative.

    With ``p`` as large and ``u`` as small as rounding allows, none of the labels is cut off.
    """
    return torch.where(u > 0, p / u.clamp_min(1e-300), torch.inf).amin(-1).clamp(1e-300, LARGEST)
