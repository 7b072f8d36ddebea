"""This module holds what an attacker knows of images before any gradient is read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.matching.gauss_newton.image_metric import cosine_basis

ONE_IMAGE_AXES = 3  # (C, H, W)


@dataclass(frozen=True)
class ImagePrior:
    """This says that neighbouring pixels are alike, and the colours of a pixel too.

    The amplitude of a cosine of frequency ``f`` is taken to be proportional to ``1/(1 + |f|)``, as
    in photographs. Inputs that are not images have independent entries.

    Attributes:
        contrast: the standard deviation of a pixel of range one.
        colours: the correlation between the colours of a pixel.
    """

    contrast: float = 0.25
    colours: float = 0.9

    def precision(self, shape: tuple[int, ...]) -> Tensor:
        """Return the inverse covariance (n, n) of the n entries of an input of this shape."""
        if len(shape) != ONE_IMAGE_AXES:
            entries = int(torch.Size(shape).numel())
            return torch.eye(entries, dtype=torch.double) / self.contrast**2
        channels, height, width = shape
        rows, columns = cosine_basis(height), cosine_basis(width)
        f, g = (torch.arange(length, dtype=torch.double) for length in (height, width))
        power = (1 + (f[:, None].square() + g.square()).sqrt()).pow(-2).reshape(-1, 1)
        basis = torch.einsum("ai,bj->abij", rows, columns).reshape(height * width, -1)
        smooth = basis.T @ (basis * (power.mean() / power))
        alike = torch.full((channels, channels), self.colours, dtype=torch.double)
        alike.fill_diagonal_(1.0)
        return (
            torch.kron(torch.linalg.inv(alike).contiguous(), smooth.contiguous()) / self.contrast**2
        )
