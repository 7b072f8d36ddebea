"""The map from pixels in [0, 1] to what a network is fed, and back."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from softleak.core.errors import DataError


@dataclass(frozen=True)
class Normalisation:
    """The map x -> (x - mean) / std, with one mean and one std per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean:
            raise DataError(
                f"Expected one mean and one std for each channel, "
                f"got {len(self.mean)} and {len(self.std)}."
            )
        if not all(math.isfinite(value) for value in (*self.mean, *self.std)):
            raise DataError(f"Means and stds must be finite, got {self.mean} and {self.std}.")
        if min(self.std) <= 0:
            raise DataError(f"Every std must be positive, got {self.std}.")

    def apply(self, x: Tensor) -> Tensor:
        """Return the network input of pixels (..., C, H, W) in [0, 1], in the same shape."""
        return (x - self._channels(self.mean, x)) / self._channels(self.std, x)

    def invert(self, x: Tensor) -> Tensor:
        """Return the pixels of a network input (..., C, H, W), in the same shape."""
        return x * self._channels(self.std, x) + self._channels(self.mean, x)

    def _channels(self, values: tuple[float, ...], x: Tensor) -> Tensor:
        if x.dim() < 3 or x.shape[-3] != len(values):
            raise DataError(
                f"Expected images (..., {len(values)}, H, W) for this normalisation, "
                f"got {tuple(x.shape)}."
            )
        return x.new_tensor(values).reshape(-1, 1, 1)


CIFAR10_NORM = Normalisation((0.4915, 0.4823, 0.4468), (0.2470, 0.2435, 0.2616))
IMAGENET_NORM = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
