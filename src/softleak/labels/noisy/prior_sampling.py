"""Much noise: labels are drawn from the family's prior, each weighted by the gradient as a whole.

Where ``u`` is hardly known, the posterior is not Gaussian in any small neighbourhood. A label and
the noise of the logits together determine ``p``, and hence ``u = (p − y)/|p − y|``, whose
likelihood is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.labels.noisy.draws import Draws
from softleak.labels.noisy.gaussian import normal_draws
from softleak.labels.noisy.posterior import Posterior


@dataclass(frozen=True)
class PriorSamplingSettings:
    """How many labels are drawn, and how their probabilities are found.

    Attributes:
        labels: labels drawn in each simplex.
        steps: damped fixed-point steps to the probabilities ``p`` of a label.
        grid: scalars at which the evidence of other layers is evaluated.
        seed: the seed of all draws, so that equal shares give equal answers.
        smallest: the smallest ``|p − y|``, and the smallest scalar.
    """

    labels: int = 64
    steps: int = 16
    grid: int = 128
    seed: int = 0
    smallest: float = 1e-12


PRIOR_SAMPLING = PriorSamplingSettings()


def draw_from_prior(posterior: Posterior) -> Draws:
    """Return labels of the prior and their scalars, weighted by the likelihood of the gradient.

    Raises:
        ArithmeticError: if no label has a likelihood above zero.
    """
    signal, typical = posterior.signal, posterior.typical
    smallest = PRIOR_SAMPLING.smallest
    labels = draw_labels(posterior)[:, None]  # (R, 1, C)
    omega = normal_draws(len(posterior.b)).to(labels) @ signal.a_root.T  # (M, C)
    lengths = _lengths(len(omega)).to(labels)
    p = torch.full_like(labels + omega, 1 / len(posterior.b))
    for _ in range(PRIOR_SAMPLING.steps):
        delta = p - labels
        size = delta.norm(dim=-1, keepdim=True).clamp_min(smallest)
        u = delta / size
        tau = size
        if posterior.scale_unknown:
            tau = (u @ signal.mean).clamp_min(smallest)[..., None] / (
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
        raise ArithmeticError("no label drawn from the prior explains the gradient")
    weight = (log - log.max()).exp()
    every = labels.expand(p.shape).flatten(0, 1)
    return Draws(every, tau.flatten(), size.flatten(), weight / weight.sum())


def draw_labels(posterior: Posterior) -> Tensor:
    """Return labels (R, C) drawn from the family's prior, equally many from every simplex.

    The gamma variables of a Dirichlet distribution with whole concentrations are sums of
    exponential variables.
    """
    simplices = posterior.simplices
    generator = torch.Generator().manual_seed(PRIOR_SAMPLING.seed)
    count, each = len(simplices.origin), PRIOR_SAMPLING.labels
    parts = [
        torch.empty(int(alpha), count * each, dtype=torch.double)
        .exponential_(generator=generator)
        .sum(0)
        for alpha in simplices.concentration
    ]
    weights = torch.stack(parts, -1)
    weights = (weights / weights.sum(-1, keepdim=True)).view(count, each, -1)
    return (weights @ simplices.corners).flatten(0, 1).to(posterior.b)


def _lengths(count: int) -> Tensor:
    """Return normal quantiles (M,) in random order, which stand for the lengths of features."""
    levels = (torch.arange(count, dtype=torch.double) + 0.5) / count
    generator = torch.Generator().manual_seed(PRIOR_SAMPLING.seed)
    quantiles: Tensor = torch.special.ndtri(levels)
    return quantiles[torch.randperm(count, generator=generator)]


def _evidence(posterior: Posterior, tau: Tensor) -> Tensor:
    """Return the log likelihood of every τ, interpolated between the scalars of a grid."""
    if not posterior.evidence:
        return torch.zeros_like(tau)
    count = PRIOR_SAMPLING.grid
    low, high = float(tau.min()), float(tau.max()) + PRIOR_SAMPLING.smallest
    grid = torch.linspace(low, high, count).to(tau)
    known = torch.stack([piece(grid) for piece in posterior.evidence]).sum(0)
    right = torch.searchsorted(grid, tau.contiguous()).clamp(1, count - 1)
    part = (tau - grid[right - 1]) / (grid[right] - grid[right - 1])
    return torch.lerp(known[right - 1], known[right], part)
