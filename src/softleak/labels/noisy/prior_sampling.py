"""Much noise: labels are drawn from the family's prior, each weighted by the gradient as a whole.

Where ``u`` is hardly known, the posterior is not Gaussian in any small neighbourhood. A label and
the noise of the logits together determine ``p``, and hence ``u = (p − y)/|p − y|``, whose
likelihood is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.labels.noisy.draws import Draws
from softleak.labels.noisy.posterior import Posterior
from softleak.labels.noisy.probabilities import NoisyLogits, weigh


@dataclass(frozen=True)
class PriorSamplingSettings:
    """How many labels are drawn, and with how much noise each is looked at.

    Attributes:
        labels: labels drawn in each simplex.
        entries: the number of probabilities up to which every label meets all the noise. With more
            of them, labels without weight are left out first, and each of the others meets as much
            of the noise as this number allows.
        glance: draws of the noise that a label meets before it may be left out.
        negligible: a label is left out if its logarithm is this much lower than the highest.
        swing: a label's highest logarithm may be too low by this many times its distance from
            their median,
        widest: and by no more than this.
        seed: the seed of all draws, so that equal shares give equal answers.
    """

    labels: int = 64
    entries: int = 2**23
    glance: int = 8
    negligible: float = 30.0
    swing: float = 2.0
    widest: float = 100.0
    seed: int = 0


PRIOR_SAMPLING = PriorSamplingSettings()


def draw_from_prior(posterior: Posterior) -> Draws:
    """Return labels of the prior and their scalars, weighted by the likelihood of the gradient.

    Raises:
        ArithmeticError: if no label has a likelihood above zero.
    """
    labels, plain = draw_labels(posterior)
    noise = NoisyLogits.of(posterior, PRIOR_SAMPLING.seed)
    each = noise.count
    if labels.numel() * each > PRIOR_SAMPLING.entries:
        glance = weigh(posterior, labels, noise, PRIOR_SAMPLING.glance)
        some = _with_weight(glance.log)
        labels, plain = labels[some], plain[some]
        each = max(min(PRIOR_SAMPLING.entries // labels.numel(), each), PRIOR_SAMPLING.glance)
    found = weigh(posterior, labels, noise, each)
    if not bool(found.log.isfinite().any()):
        raise ArithmeticError("no label drawn from the prior explains the gradient")
    weight = (found.log - found.log.max()).exp()
    return Draws(labels, found.tau, found.size, weight / weight.sum(), plain)


def _with_weight(log: Tensor) -> Tensor:
    """Return which labels (R,) may have weight, by the logarithms (R, m) of a few draws of noise.

    If none of them is finite, nothing is known and every label may.
    """
    highest = log.amax(-1)
    swing = PRIOR_SAMPLING.swing * (highest - log.median(-1).values).nan_to_num(nan=0.0)
    reach = highest + swing.clamp_max(PRIOR_SAMPLING.widest)
    return reach >= highest.max() - PRIOR_SAMPLING.negligible


def draw_labels(posterior: Posterior) -> tuple[Tensor, Tensor]:
    """Return labels (R, C) drawn from the family's prior, equally many from every simplex.

    The second tensor (R,) tells which of them are on a face that has a probability of its own.
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
    weights = torch.stack(parts, -1).view(count, each, -1)
    plain = torch.zeros(count, each, dtype=torch.bool)
    plain[:, ::2] = simplices.faced  # as probable as the rest
    weights[..., -1] *= ~plain
    weights = weights / weights.sum(-1, keepdim=True)
    labels = (weights @ simplices.corners).flatten(0, 1).to(posterior.b)
    return labels, plain.flatten().to(labels.device)
