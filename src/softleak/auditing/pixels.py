"""This module maps a model's input to pixels of range one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.data import Normalisation

LIKE_PIXELS = (-0.1, 1.1)  # an input within these is taken for pixels if nobody says


@dataclass(frozen=True, eq=False)
class PixelMap:
    """This computes ``x · scale + offset`` in float64. Both broadcast to the input."""

    scale: Tensor
    offset: Tensor

    @classmethod
    def of(cls, x: Tensor, normalisation: Normalisation | None) -> PixelMap:
        """Return the inverse of a normalisation, or else a stretch to the input's own range.

        Args:
            x: an input, or the inputs (B, …) of a batch, which then have one range.
            normalisation: how pixels became inputs, if that is known.
        """
        if normalisation is not None:
            zero = torch.zeros(x.shape[-3:], dtype=torch.double)  # (C, H, W), also of a batch
            std = zero.new_tensor(normalisation.std).reshape(-1, 1, 1)
            return cls(std, normalisation.invert(zero))
        low, high = float(x.min()), float(x.max())
        if LIKE_PIXELS[0] <= low and high <= LIKE_PIXELS[1]:
            low, high = 0.0, 1.0
        scale = torch.tensor(1 / max(high - low, 1e-12), dtype=torch.double)
        return cls(scale, -low * scale)

    def __call__(self, x: Tensor) -> Tensor:
        """Return an input in pixels."""
        return x.detach().cpu().double() * self.scale + self.offset

    def undo(self, pixels: Tensor) -> Tensor:
        """Return pixels as an input."""
        return (pixels.detach().cpu().double() - self.offset) / self.scale
