"""Losses: what a client minimises, and what its residual at the logits says of the label.

The gradient at the logits of one sample is ``δ = f (predict(z) − y)``, with ``f`` the factor of the
mean over outputs. A label is read as ``y = predict(z) − δ/f``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from softleak.core.errors import OptionError

Reduction = Literal["mean", "sum"]


@dataclass(frozen=True)
class Loss(ABC):
    """A loss of logits (B, C) and targets (B, C), averaged over the batch.

    Attributes:
        reduction: whether the terms of one sample's outputs are averaged or added up. The
            cross-entropy has one term for each sample, so that it makes no difference there.
    """

    reduction: Reduction = "mean"

    name: ClassVar[str]
    balanced: ClassVar[bool] = False  # whether the residuals of a sample sum to zero

    def __post_init__(self) -> None:
        if self.reduction not in ("mean", "sum"):
            raise OptionError(f'reduction should be "mean" or "sum", got {self.reduction!r}')

    @abstractmethod
    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a batch."""

    @abstractmethod
    def predict(self, z: Tensor) -> Tensor:
        """Return what a label is compared with: probabilities, or the outputs themselves."""

    def slope(self, outputs: int) -> float:
        """Return ``f``, the factor of ``predict(z) − y`` in the residual."""
        return 1.0 / outputs if self.reduction == "mean" else 1.0

    def residual(self, z: Tensor, y: Tensor) -> Tensor:
        """Return ``δ = ∂L/∂z`` (…, C) of each sample by itself."""
        return self.slope(z.shape[-1]) * (self.predict(z) - y)

    def label(self, z: Tensor, delta: Tensor) -> Tensor:
        """Return the label (…, C) that leaves the residual ``δ`` at logits ``z``."""
        return self.predict(z) - delta / self.slope(z.shape[-1])


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Softmax cross-entropy: labels are distributions over classes."""

    name = "ce"
    balanced = True

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets)

    def predict(self, z: Tensor) -> Tensor:
        return torch.softmax(z, -1)

    def slope(self, outputs: int) -> float:
        return 1.0


@dataclass(frozen=True)
class BinaryCrossEntropy(Loss):
    """Sigmoid cross-entropy of several labels, as ``BCEWithLogitsLoss`` computes it."""

    name = "bce"

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        summed = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(-1)
        return summed.mean() * self.slope(logits.shape[-1])

    def predict(self, z: Tensor) -> Tensor:
        return torch.sigmoid(z)


@dataclass(frozen=True)
class MeanSquaredError(Loss):
    """The squared error of outputs and targets, which may be any numbers."""

    name = "mse"

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        return (logits - targets).square().sum(-1).mean() * self.slope(logits.shape[-1]) / 2

    def predict(self, z: Tensor) -> Tensor:
        return z

    def slope(self, outputs: int) -> float:
        return 2 * super().slope(outputs)


CROSS_ENTROPY = CrossEntropy()
LOSSES: dict[str, type[Loss]] = {
    one.name: one for one in (CrossEntropy, BinaryCrossEntropy, MeanSquaredError)
}


def named_loss(given: str | Loss) -> Loss:
    """Return a loss by its name, or the loss itself."""
    if isinstance(given, Loss):
        return given
    if given not in LOSSES:
        raise OptionError(f"loss should be one of {', '.join(LOSSES)} or a Loss, got {given!r}")
    return LOSSES[given]()
