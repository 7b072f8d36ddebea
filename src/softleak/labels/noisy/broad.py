"""Much noise: labels drawn from the family's prior, each weighed by the gradient as a whole.

Where ``u`` is hardly known there is no small neighbourhood to be Gaussian in. A label and the noise
of the logits together fix ``p``, hence ``u = (p − y)/|p − y|``, whose likelihood is exact.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from softleak.labels.noisy.answer import Draws
from softleak.labels.noisy.posterior import Posterior, normal_draws

LABELS = 64  # drawn in each simplex
STEPS = 16  # of the fixed point of p
GRID = 128  # scalars that evidence is evaluated at
SEED = 0
TINY = 1e-12


def broad_draws(posterior: Posterior) -> Draws:
    """Labels and scalars with their weights, for one client."""
    signal, typical = posterior.signal, posterior.typical
    labels = _labels(posterior)[:, None]  # (R, 1, C)
    omega = normal_draws(len(posterior.b)).to(labels) @ signal.a_root.T  # (M, C)
    lengths = _lengths(len(omega)).to(labels)
    p = torch.full_like(labels + omega, 1 / len(posterior.b))
    for _ in range(STEPS):
        delta = p - labels
        size = delta.norm(dim=-1, keepdim=True).clamp_min(TINY)
        u = delta / size
        tau = size
        if posterior.scale_unknown:
            tau = (u @ signal.mean).clamp_min(TINY)[..., None] / (
                typical.length + typical.doubt * lengths
            ).exp()[:, None]
        ahead = torch.softmax((u @ signal.response.T + omega) / tau + posterior.b, -1)
        p = (p + ahead) / 2
    along = u @ signal.mean
    log = ((u @ signal.gram) * u).sum(-1) / (2 * signal.noise**2)
    tau, size = tau[..., 0], size[..., 0]
    if posterior.scale_unknown:
        log = torch.where(along > 0, log, -math.inf)
    else:
        log = log + typical.log_prior(along.clamp_min(signal.noise), signal.noise, tau)
    log = (log + _evidence(posterior, tau)).flatten()
    if not bool(log.isfinite().any()):
        raise ArithmeticError("no label is likely at all")
    weight = (log - log.max()).exp()
    every = labels.expand(p.shape).flatten(0, 1)
    return Draws(every, tau.flatten(), size.flatten(), weight / weight.sum())


def _labels(posterior: Posterior) -> Tensor:
    """(R, C) from the family's prior, as many of every simplex."""
    patches = posterior.patches
    generator = torch.Generator().manual_seed(SEED)
    count = len(patches.origin)
    # The gamma variables of a Dirichlet with whole concentrations are sums of exponential ones.
    parts = [
        torch.empty(int(alpha), count * LABELS, dtype=torch.double)
        .exponential_(generator=generator)
        .sum(0)
        for alpha in patches.concentration
    ]
    weights = torch.stack(parts, -1)
    weights = (weights / weights.sum(-1, keepdim=True)).view(count, LABELS, -1)
    return (weights @ patches.corners).flatten(0, 1).to(posterior.b)


def _lengths(count: int) -> Tensor:
    """Normal quantiles (M,), in an order of their own: how long the feature is."""
    levels = (torch.arange(count, dtype=torch.double) + 0.5) / count
    order = torch.randperm(count, generator=torch.Generator().manual_seed(SEED))
    quantiles: Tensor = torch.special.ndtri(levels)
    return quantiles[order]


def _evidence(posterior: Posterior, tau: Tensor) -> Tensor:
    """The log likelihood of every τ, between those of a grid."""
    if not posterior.evidence:
        return torch.zeros_like(tau)
    grid = torch.linspace(float(tau.min()), float(tau.max()) + TINY, GRID).to(tau)
    known = torch.stack([piece(grid) for piece in posterior.evidence]).sum(0)
    right = torch.searchsorted(grid, tau.contiguous()).clamp(1, GRID - 1)
    part = (tau - grid[right - 1]) / (grid[right] - grid[right - 1])
    return torch.lerp(known[right - 1], known[right], part)
