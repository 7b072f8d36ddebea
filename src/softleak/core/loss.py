"""Losses: what a client minimises, and what its residual at the logits says of the label.

The gradient at the logits of one sample is ``δ = f (predict(z) − y)``, with ``f`` the factor of the
mean over outputs. A label is read as ``y = predict(z) − δ/f``; weights of classes change both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from softleak.core.errors import LabelError, OptionError

Reduction = Literal["mean", "sum"]
SUM_TOLERANCE_PER_CLASS = 2.5e-7  # what float32 arithmetic leaves of a sum of one


@dataclass(frozen=True)
class Loss(ABC):
    """A loss of logits (B, C) and targets (B, C), averaged over the batch.

    A loss of your own says what it is called, its value, what it predicts, and, unless its residual
    is ``slope · (predict(z) − y)``, its residual and the label that a residual means.

    Attributes:
        reduction: whether the terms of one sample's outputs are averaged or added up. The
            cross-entropy has one term for each sample, so that it makes no difference there.
    """

    reduction: Reduction = field(default="mean", kw_only=True)

    name: ClassVar[str]
    balanced: ClassVar[bool] = False  # whether the residuals of a sample sum to zero
    least: ClassVar[float] = -float("inf")  # the range of a label's entries
    most: ClassVar[float] = float("inf")

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

    def flat(self, outputs: int) -> float:
        """Return the entry that smoothing draws every entry of a label towards; 0 for none."""
        return 0.0

    def check(self, label: Tensor) -> None:
        """Raise ``LabelError`` unless a client can train on this label (C,)."""
        if float(label.min()) < self.least or float(label.max()) > self.most:
            raise LabelError(
                f"expected labels from {self.least:g} to {self.most:g}, as {self.name!r} takes "
                f"them, got entries from {float(label.min()):.3g} to {float(label.max()):.3g}"
            )


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Softmax cross-entropy: labels are distributions over classes.

    Attributes:
        weight: what the terms of each class are multiplied by. As in torch, a batch of one-hot
            labels is then divided by the sum of its weights, and of soft labels by their number.
    """

    weight: Sequence[float] | None = None

    name = "ce"
    balanced = True
    least, most = 0.0, 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "weight", _weights(self.weight))

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self.weight is None:
            return F.cross_entropy(logits, targets)
        weight = logits.new_tensor(self.weight)
        hard = bool((targets.amax(-1) == 1).all())
        return F.cross_entropy(logits, targets.argmax(-1) if hard else targets, weight)

    def predict(self, z: Tensor) -> Tensor:
        return torch.softmax(z, -1)

    def slope(self, outputs: int) -> float:
        return 1.0

    def residual(self, z: Tensor, y: Tensor) -> Tensor:
        if self.weight is None or float(y.max()) == 1:
            return super().residual(z, y)
        weighted = y * y.new_tensor(self.weight)
        return weighted.sum(-1, keepdim=True) * self.predict(z) - weighted

    def label(self, z: Tensor, delta: Tensor) -> Tensor:
        if self.weight is None:
            return super().label(z, delta)
        p, weight = self.predict(z), z.new_tensor(self.weight)
        whole = (1 + (delta / weight).sum(-1, keepdim=True)) / (p / weight).sum(-1, keepdim=True)
        return (whole * p - delta) / weight

    def flat(self, outputs: int) -> float:
        return 1.0 / outputs

    def check(self, label: Tensor) -> None:
        total = float(label.double().sum())
        rounding = torch.finfo(label.dtype).eps if label.is_floating_point() else 0.0
        off = max(SUM_TOLERANCE_PER_CLASS * len(label), rounding)
        if label.min() < 0 or abs(total - 1) > off:
            raise LabelError(
                "expected a soft label with no negative entry and sum one, got minimum "
                f"{float(label.min()):.3g} and sum {total:.7g}; divide it by its sum, or name "
                'another loss, such as "bce" of several labels'
            )


@dataclass(frozen=True)
class BinaryCrossEntropy(Loss):
    """Sigmoid cross-entropy of several labels, as ``BCEWithLogitsLoss`` computes it.

    Attributes:
        pos_weight: what the term of each label that is there is multiplied by.
    """

    pos_weight: Sequence[float] | None = None

    name = "bce"
    least, most = 0.0, 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "pos_weight", _weights(self.pos_weight))

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        weight = None if self.pos_weight is None else logits.new_tensor(self.pos_weight)
        terms = F.binary_cross_entropy_with_logits(
            logits, targets, reduction="none", pos_weight=weight
        )
        return terms.sum(-1).mean() * self.slope(logits.shape[-1])

    def predict(self, z: Tensor) -> Tensor:
        return torch.sigmoid(z)

    def residual(self, z: Tensor, y: Tensor) -> Tensor:
        if self.pos_weight is None:
            return super().residual(z, y)
        return self.slope(z.shape[-1]) * (self.predict(z) - y * self._span(z))

    def label(self, z: Tensor, delta: Tensor) -> Tensor:
        if self.pos_weight is None:
            return super().label(z, delta)
        return super().label(z, delta) / self._span(z)

    def _span(self, z: Tensor) -> Tensor:
        """Return how far ``δ/f`` is apart for the labels zero and one."""
        p = self.predict(z)
        return p + p.new_tensor(self.pos_weight or 1.0) * (1 - p)

    def flat(self, outputs: int) -> float:
        return 0.5


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


IGNORED = -100  # the target of a token that is not predicted, as Hugging Face writes it


@dataclass(frozen=True)
class NextToken(Loss):
    """The mean cross-entropy of every next token: a text is its own label.

    Logits are (B, L, V) and targets (B, L) the token ids themselves; where a target is ``IGNORED``,
    as that of padding, the token there is not predicted. The mean is over all predictions.
    """

    name = "next-token"
    balanced = True

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(
            logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten(), ignore_index=IGNORED
        )

    def predict(self, z: Tensor) -> Tensor:
        return torch.softmax(z, -1)


def _weights(given: Sequence[float] | Tensor | None) -> tuple[float, ...] | None:
    """Return weights of classes as numbers, or raise ``OptionError``."""
    if given is None:
        return None
    found = tuple(float(one) for one in given)
    if not found or not all(0 < one < float("inf") for one in found):
        raise OptionError(f"expected a positive weight for each class, got {found}")
    return found


CROSS_ENTROPY = CrossEntropy()
LOSSES: dict[str, type[Loss]] = {
    one.name: one for one in (CrossEntropy, BinaryCrossEntropy, MeanSquaredError, NextToken)
}


def named_loss(given: str | Loss) -> Loss:
    """Return a loss by its name, or the loss itself."""
    if isinstance(given, Loss):
        return given
    if given not in LOSSES:
        raise OptionError(f"loss should be one of {', '.join(LOSSES)} or a Loss, got {given!r}")
    return LOSSES[given]()


def stated_loss(given: str | Loss | None) -> Loss | None:
    """Return the loss that somebody states by its name or as it is; None where none is stated."""
    return None if given is None else named_loss(given)
