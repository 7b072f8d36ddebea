"""The losses that clients minimise: torch's own where it has them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

SMOOTHING = 0.1
TEMPERATURE = 3.0
FOCUS = 2.0

LossFunction = Callable[[Tensor, Tensor], Tensor]  # of logits (B, C) and labels (B, C)


def cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(z, y)


def smoothed(z: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(z, y, label_smoothing=SMOOTHING)


def tempered(z: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(z / TEMPERATURE, y)


def binary(z: Tensor, y: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(z, y)


def squared(z: Tensor, y: Tensor) -> Tensor:
    return functional.mse_loss(z, y)


def hinge(z: Tensor, y: Tensor) -> Tensor:
    return functional.multi_margin_loss(z, y.argmax(-1))


def focal(z: Tensor, y: Tensor) -> Tensor:
    each = functional.cross_entropy(z, y, reduction="none")
    return ((1 - torch.exp(-each)) ** FOCUS * each).mean()
