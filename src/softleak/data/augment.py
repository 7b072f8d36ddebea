"""This module makes soft labels as training recipes do: by smoothing, mixup and both.

Labels are computed in float64, so that they sum to one as nearly as they can.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.errors import DataError


@dataclass(frozen=True, eq=False)
class Sample:
    """This is a network input x (C, H, W) and its soft label y (classes,)."""

    x: Tensor
    y: Tensor


def one_hot(label: int, classes: int) -> Tensor:
    """Return the label (classes,) float64 that is 1 at `label`."""
    return smooth(label, classes, 0.0)


def smooth(label: int, classes: int, epsilon: float) -> Tensor:
    """Return the label (classes,) float64 with 1 - ε + ε/C at `label` and ε/C elsewhere.

    Args:
        label: the class of the image.
        classes: the number of classes C.
        epsilon: the weight ε that is spread over all classes, from 0 to 1.
    """
    if not 0 <= label < classes:
        raise DataError(f"label must lie in 0 to {classes - 1} for {classes} classes, got {label}.")
    check_share("epsilon", epsilon)
    y = torch.full((classes,), epsilon / classes, dtype=torch.float64)
    y[label] = 1 - epsilon + epsilon / classes
    return y


def mixup(x1: Tensor, y1: Tensor, x2: Tensor, y2: Tensor, weight: float) -> Sample:
    """Return (1 - weight) of the first sample plus `weight` of the second.

    Args:
        x1: the first image (C, H, W).
        y1: its label (classes,).
        x2: the second image.
        y2: its label.
        weight: the share of the second sample, from 0 to 1.
    """
    check_share("weight", weight)
    if x1.shape != x2.shape or y1.shape != y2.shape:
        raise DataError(
            f"Expected two samples of one shape, got images {tuple(x1.shape)} and "
            f"{tuple(x2.shape)}, labels {tuple(y1.shape)} and {tuple(y2.shape)}."
        )
    return Sample((1 - weight) * x1 + weight * x2, (1 - weight) * y1 + weight * y2)


def check_share(name: str, value: float) -> None:
    """Raise unless value lies in [0, 1]."""
    if not 0.0 <= value <= 1.0:
        raise DataError(f"{name} must lie in [0, 1], got {value}.")
