"""The losses clients minimise, and which label a cross-entropy would need for the same gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

PARALLEL = 1e-9

LossFunction = Callable[[Tensor, Tensor], Tensor]  # of logits (N, C) and labels (N, C)


@dataclass(frozen=True)
class Loss:
    """A loss of logits and labels.

    ``weight`` says by how much each class's share of a label is multiplied in the gradient, given
    the probabilities: the gradient is then that of a cross-entropy with the label so weighted, at
    another scale.
    """

    function: LossFunction
    weight: Callable[[Tensor], Tensor] | None = None
    effective: Callable[[Tensor], Tensor] | None = None  # the label that the loss makes of a label

    def reading(self, z: Tensor, y: Tensor) -> Tensor | None:
        """The label (C,) of which a rescaled cross-entropy has the same gradient, if there is one.

        ``z`` are logits (C,) in float64, ``y`` is the label (C,) given to the loss.
        """
        if self.effective is not None:
            return self.effective(y)
        if self.weight is not None:
            weighted = self.weight(z.softmax(-1)) * y
            return weighted / weighted.sum()
        return y if _parallel(self._delta(z, y), z.softmax(-1) - y) else None

    def _delta(self, z: Tensor, y: Tensor) -> Tensor:
        logits = z.detach().requires_grad_()
        (delta,) = torch.autograd.grad(self.function(logits[None], y[None]), logits)
        return delta


def _parallel(a: Tensor, b: Tensor) -> bool:
    scale = float(a.norm() * b.norm())
    return scale == 0 or abs(float(a @ b)) >= (1 - PARALLEL) * scale


def cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(z, y)


def quarter(z: Tensor, y: Tensor) -> Tensor:
    """As gradient accumulation over four batches divides it."""
    return functional.cross_entropy(z, y) / 4


def class_weights(z: Tensor) -> Tensor:
    return torch.linspace(0.5, 2.0, z.shape[-1], dtype=z.dtype)


def weighted(z: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(z, y, weight=class_weights(z))


def smoothing(z: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(z, y, label_smoothing=0.1)


def focal(z: Tensor, y: Tensor) -> Tensor:
    """The focal loss with exponent two."""
    log_p = z.log_softmax(-1)
    return -(y * (1 - log_p.exp()).square() * log_p).sum(-1).mean()


def focal_weight(p: Tensor) -> Tensor:
    return (1 - p).square() - 2 * p * (1 - p) * p.clamp_min(1e-300).log()


def generalised(z: Tensor, y: Tensor) -> Tensor:
    """The generalised cross-entropy with exponent 0.7."""
    return (y * (1 - z.softmax(-1) ** 0.7) / 0.7).sum(-1).mean()


def brier(z: Tensor, y: Tensor) -> Tensor:
    return (z.softmax(-1) - y).square().sum(-1).mean()


def tempered(z: Tensor, y: Tensor) -> Tensor:
    """A temperature of three that only the loss knows."""
    return functional.cross_entropy(z / 3, y)


CROSS_ENTROPY = Loss(cross_entropy)
QUARTER = Loss(quarter)
WEIGHTED = Loss(weighted, weight=class_weights)
SMOOTHING = Loss(smoothing, effective=lambda y: 0.9 * y + 0.1 / len(y))
FOCAL = Loss(focal, weight=focal_weight)
GENERALISED = Loss(generalised, weight=lambda p: p**0.7)
BRIER = Loss(brier)
TEMPERED = Loss(tempered)
