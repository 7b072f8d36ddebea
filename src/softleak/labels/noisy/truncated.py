"""Gaussian weights of a simplex: their probability mass inside it, and draws from there.

The weights are drawn coordinate by coordinate (Geweke, Hajivassiliou and Keane). Each is drawn from
the part of its conditional distribution that the ones before leave room for. The product of the
masses of these parts is an unbiased estimate of the mass inside.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.special import log_ndtr, ndtri

# Further below the mean than this many standard deviations, the tail of a normal distribution is
# zero in float64 and cannot be drawn from. Draws are then put at the nearer bound.
LOWEST_QUANTILE = -37.0


def draw_inside(
    mean: Tensor, root: Tensor, uniform: Tensor, top: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw from N(mean, root rootᵀ), restricted to weights that fit in a simplex.

    Args:
        mean: (…, d) the means.
        root: (…, d, d) roots of the covariances, lower triangular.
        uniform: (K, d) points of the open unit cube, one for each draw.
        top: () an upper bound of the first entry. If it is given, that entry is not a weight of
            the simplex but is bounded by it alone.

    Returns:
        The draws (…, K, d), with no entry negative and a sum of at most one, the logarithms (…, K)
        of the masses that weight them, and their squared distances (…, K) from the mean, in units
        of the covariance.
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
    return (torch.stack(found, -1) if found else z), mass, z.square().sum(-1)


def _truncated(low: Tensor, high: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log mass of a standard normal variable between two bounds, and a draw from there.

    An interval in the upper tail is mirrored to the lower one, which floats resolve.
    """
    mirrored = low > 0
    left, right = torch.where(mirrored, -high, low), torch.where(mirrored, -low, high)
    top, bottom = log_ndtr(right), log_ndtr(left)
    mass = top + torch.log1p(-(bottom - top).clamp_max(-1e-15).exp())
    level = torch.logaddexp(bottom, mass + uniform.log())
    drawn = torch.where(right > LOWEST_QUANTILE, ndtri(level.exp()), right).clamp(left, right)
    return mass, torch.where(mirrored, -drawn, drawn)
