"""This module says which changes of an image are likely: smooth ones more than rough ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor

IMAGE_AXES = 4  # of a batch of images (B, C, H, W)


def cosine_basis(length: int) -> Tensor:
    """Return the orthonormal cosines (frequency, place) on so many places."""
    k = torch.arange(length, dtype=torch.double)
    basis = torch.cos(math.pi * (k + 0.5) * k[:, None] / length) * math.sqrt(2 / length)
    basis[0] /= math.sqrt(2)
    return basis


def roughness(shape: tuple[int, ...], power: float) -> Tensor | None:
    """Return how much a change at each frequency (H, W) of a channel counts.

    It is ``(1 + |f|)^(2·power)``, divided by its mean. Natural images have amplitudes of about
    ``1/|f|``, so with a power of one all parts of an image are equally far away.

    Args:
        shape: the shape (B, …) of a batch.
        power: how fast it grows with the frequency; zero means not at all.

    Returns:
        None if the inputs are not images, or the power is zero.
    """
    if len(shape) != IMAGE_AXES or not power or shape[2] * shape[3] == 1:
        return None
    f, g = (torch.arange(length, dtype=torch.double) for length in shape[2:])
    values = (1 + (f[:, None].square() + g.square()).sqrt()).pow(2 * power)
    return values / values.mean()


def roughness_metric(shape: tuple[int, ...], power: float) -> Tensor | None:
    """Return the matrix (HW, HW) whose quadratic form is large for rough changes of a channel.

    Its eigenvectors are cosines, its eigenvalues are what ``roughness`` says.
    """
    values = roughness(shape, power)
    if values is None:
        return None
    rows, columns = (cosine_basis(length) for length in shape[2:])
    both = torch.einsum("ai,bj->abij", rows, columns).reshape(values.numel(), -1)
    return both.T @ (both * values.reshape(-1, 1))
