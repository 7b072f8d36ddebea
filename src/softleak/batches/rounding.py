"""This module says how far rounding moves the equations of a batch.

Every entry of the head's gradient is rounded, and so are the probabilities that the client
computed. Let ``n_c`` be the standard error of an entry in row ``c`` of the gradient. To first order
the rows of ``U a`` are off by ``n_c ‖S⁻¹ a‖``, and logits by ``B ‖W_c‖ ‖n ∘ U b‖``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.batches.head_space import HeadSpace
from softleak.batches.one_sample import SamplePoints


@dataclass(frozen=True)
class RoundingSettings:
    """These settings turn single roundings into standard errors.

    Attributes:
        summed: how many roundings a sum over the batch and over a feature has, as a factor.
        least: the smallest error of a number near one, in roundings of its own size.
    """

    summed: float = 2.0
    least: float = 1.0


ROUNDING = RoundingSettings()


def as_sent(space: HeadSpace, at: SamplePoints) -> Tensor:
    """Return the sizes (N, C) of the differences that the client multiplied with features.

    It had rounded them: a difference far below the rounding of its label may have been zero.
    """
    return torch.minimum((at.p - at.label).abs(), (at.a @ space.spread.T).abs())


def entry_errors(space: HeadSpace, differences: Tensor, features: Tensor) -> Tensor:
    """Return the standard error ``n`` (C,) of the entries of each row of the head's gradient.

    The terms of a sum are rounded before they cancel, so their sizes count, not that of the sum.

    Args:
        space: the factors of the head's gradient.
        differences: (N, C) the ``δ`` of all samples.
        features: (N, I) their divided features.
    """
    typical = features.square().mean(-1).sqrt()
    sizes = (differences.abs() * typical[:, None]).sum(0) / space.factor
    return ROUNDING.summed * space.relative * sizes + space.absolute


def row_errors(space: HeadSpace) -> Tensor:
    """Return the same from the gradient alone, before any sample is known."""
    sizes = space.gradient.square().mean(1).sqrt()
    hidden = (space.rows * sizes).mean() / space.rows  # what cancels in a row
    return ROUNDING.summed * space.relative * (sizes + hidden / 8) + space.absolute


def equation_errors(space: HeadSpace, n: Tensor, a: Tensor, b: Tensor, p: Tensor) -> Tensor:
    """Return the standard error (N, C) of ``p − y − U a`` for samples ``a``, ``b`` and ``p``."""
    of_differences = n * (a / space.S).norm(dim=-1, keepdim=True)
    lengths = space.weight_lengths
    back = (n * space.rows * (b @ space.U.T)).norm(dim=-1, keepdim=True)
    sizes = space.factor * (b * space.S).norm(dim=-1, keepdim=True)
    typical = sizes * lengths / space.weights.shape[1] ** 0.5
    of_logits = space.factor * lengths * back + ROUNDING.summed * space.relative * typical
    logs = p.clamp_min(torch.finfo(p.dtype).tiny).log().abs()
    own = ROUNDING.least * space.relative * (1 + logs)
    shared = (p * of_logits).norm(dim=-1, keepdim=True)
    of_p = p * (of_logits.square() + shared.square() + own.square()).sqrt()
    # A label's own entries are rounded as well, to within those of the difference.
    labels = (p - a @ space.spread.T).abs()
    of_labels = ROUNDING.least * space.relative * labels
    return torch.sqrt(of_differences.square() + of_p.square() + of_labels.square())
