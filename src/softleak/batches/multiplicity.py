"""This module asks what the size of a batch does to its labels, and what the labels say of it.

Several equal inputs act as one. With ``n`` of ``B`` samples behind a found input, the gradient
holds ``δ' = (n/B) (p − ȳ)``, where ``ȳ`` is their mean label. No entry of ``ȳ = p − δ' B/n`` is
negative, so that ``n/B ≥ max_c δ'_c / p_c``: the least weight of each found input.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.factors import SMALLEST_NORMAL


@dataclass(frozen=True, eq=False)
class Weighing:
    """This says which weight each found input has in the mean over the batch.

    Attributes:
        weight: the weight that every found input is given.
        low: the least weight (N,) that each may have.
        high: the largest weight (N,) that each may have.
        why: why the weight is not certain, as a sentence; empty if it is.
    """

    weight: float
    low: Tensor
    high: Tensor
    why: str = ""

    def labels(self, p: Tensor, delta: Tensor) -> Tensor:
        """Return ``y = p − δ'/weight`` (N, C)."""
        return p - delta / self.weight

    def label_errors(self, delta: Tensor) -> Tensor:
        """Return by how much, in L1 (N,), labels may be off because weights are not certain."""
        span = (1 / self.low - 1 / self.weight).maximum(1 / self.weight - 1 / self.high)
        return torch.where(self.low == self.high, 0.0, delta.abs().sum(1) * span)


def weigh(p: Tensor, delta: Tensor, errors: Tensor, size: int | None, vouched: bool) -> Weighing:
    """Return the weight of each sample.

    Args:
        p: the predictions (N, C).
        delta: their part ``δ'`` (N, C) in the share.
        errors: a bound (N,) of the error of an entry of ``δ'``.
        size: the size of the batch, if it was said.
        vouched: whether somebody vouches for the scale of the share.
    """
    found = len(p)
    weight = 1 / max(size or found, found)
    fixed = torch.full_like(p[:, 0], weight)
    anything = Weighing(weight, torch.zeros_like(fixed), torch.full_like(fixed, torch.inf))
    if not vouched:
        why = (
            "Nobody vouches that the share was not multiplied by a factor (clipping, a learning "
            "rate), and labels nearer to the model's own prediction explain a larger one as well."
        )
        return replace(anything, why=why)
    if size is not None and size != found:
        why = (
            f"The batch was said to hold {size} samples, but {found} different inputs are behind "
            "the share; equal inputs act as one, or the size was said wrongly."
        )
        return replace(anything, why=why)
    if size is not None:
        return Weighing(weight, fixed, fixed)
    low = (delta - errors[:, None]).div(p.clamp_min(SMALLEST_NORMAL)).amax(1).clamp(0, weight)
    high = low + (1 - low.sum()).clamp_min(0)  # beyond it another weight would have to shrink
    why = (
        "The size of the batch was not said: the labels hold if no input is in it twice. Equal "
        "inputs act as one whose label is their mean."
    )
    return Weighing(weight, low, high, why)
