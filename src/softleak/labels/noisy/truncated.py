"""Gaussian weights of a simplex: their mass inside it, and draws from there.

Coordinate by coordinate (Geweke, Hajivassiliou and Keane): each is drawn from the part of its
conditional distribution that the ones before leave room for, and the parts multiply.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.special import log_ndtr, ndtri

DEEPEST = -37.0  # standard deviations: beyond, a float64 has no tail left to draw from


def draw_inside(
    mean: Tensor, root: Tensor, uniform: Tensor, top: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Draws (…, K, d) of N(mean, root rootᵀ) with no entry negative, and log masses (…, K).

    ``mean`` (…, d) and ``root`` (…, d, d), lower triangular; ``uniform`` (K, d). Entries add up to
    at most one; if there is a ``top`` (), the first is not one of them but bounded by it.
    """
    draws = uniform.shape[0]
    shape = (*mean.shape[:-1], draws)
    z = mean.new_zeros(*shape, 0)
    found: list[Tensor] = []
    mass = mean.new_zeros(shape)
    room = mean.new_ones(shape)
    for i in range(mean.shape[-1]):
        centre = mean[..., None, i] + (z * root[..., None, i, :i]).sum(-1)
        size = root[..., None, i, i]
        outside = top is not None and i == 0
        high = top.expand(shape) if top is not None and outside else room
        part, drawn = _truncated(-centre / size, (high - centre) / size, uniform[:, i])
        weight = (centre + size * drawn).clamp_min(0.0).minimum(high)
        mass = mass + part
        found.append(weight)
        z = torch.cat([z, drawn[..., None]], -1)
        room = room if outside else (room - weight).clamp_min(0.0)
    return (torch.stack(found, -1) if found else z), mass


def _truncated(low: Tensor, high: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """The log mass of a standard normal variable between two bounds, and a draw from there."""
    mirrored = low > 0  # upper tails are read as lower ones, which floats resolve
    left, right = torch.where(mirrored, -high, low), torch.where(mirrored, -low, high)
    top, bottom = log_ndtr(right), log_ndtr(left)
    mass = top + torch.log1p(-(bottom - top).clamp_max(-1e-15).exp())
    level = torch.logaddexp(bottom, mass + uniform.log())
    drawn = torch.where(right > DEEPEST, ndtri(level.exp()), right).clamp(left, right)
    return mass, torch.where(mirrored, -drawn, drawn)
