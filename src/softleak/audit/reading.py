"""How an update file becomes a share: by what it is said to hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from torch import nn

from softleak import files
from softleak.models.checkpoint import own_weights
from softleak.share import GradientShare, Precision


class Kind(Enum):
    """What an update file holds."""

    GRADIENT = "gradient"  # the gradient itself, as somebody vouches
    DELTA = "delta"  # weights after a step minus those before it
    WEIGHTS = "weights"  # weights after a step


@dataclass(frozen=True)
class Reading:
    """What is said of update files. Without a ``kind`` they are read as gradients.

    Without ``lr`` the scale of a difference of weights is unknown. ``precision`` is the coarsest
    number format the client computed in, as with autocast.
    """

    kind: Kind | None = None
    lr: float | None = None
    precision: Precision | None = None

    def share(self, path: Path, model: nn.Module) -> GradientShare:
        """Read one file as an update of a model that has the weights before the step."""
        share = self._read(path, model)
        return share if self.precision is None else replace(share, precision=self.precision)

    def between(self, before: Path, after: Path, model: nn.Module) -> GradientShare:
        """Read the step between two checkpoints of a model."""
        old, new = (own_weights(files.load(path).tensors, model) for path in (before, after))
        share = GradientShare.from_update(old, new, lr=self.lr)
        return share if self.precision is None else replace(share, precision=self.precision)

    def _read(self, path: Path, model: nn.Module) -> GradientShare:
        if self.kind is None:
            return GradientShare.load(path)
        if self.kind is Kind.GRADIENT:
            share = GradientShare.load(path)
            return replace(share, scale=share.scale or "known")
        held = files.load(path)
        tensors = own_weights(held.tensors, model)
        if self.kind is Kind.DELTA:
            share = GradientShare.from_delta(tensors, lr=self.lr)
        else:
            share = GradientShare.from_update(model.state_dict(), tensors, lr=self.lr)
        return replace(share, input_shape=held.input_shape)
