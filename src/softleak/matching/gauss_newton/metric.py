"""How long a change of the unknowns is, which is what damping holds back.

A metric is one matrix for each block of the first unknowns (a channel of an image, the vector of a
word), and one for the unknowns behind them. It is given by its eigenvectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

IMAGE_AXES = 4  # of a batch of images (B, C, H, W)


@dataclass(frozen=True, eq=False)
class Metric:
    """The same matrix (HW, HW) for every block (H, W) of the first unknowns.

    Its eigenvectors are products of one row of ``rows`` (H, H) and one of ``columns`` (W, W).
    Without ``values`` every unknown has a length of its own.
    """

    blocks: int = 0  # how many blocks it covers
    values: Tensor | None = None  # its eigenvalues (H, W), with a mean of one
    rows: Tensor | None = None  # orthonormal (H, H)
    columns: Tensor | None = None  # orthonormal (W, W)

    @classmethod
    def of_images(cls, shape: tuple[int, ...], power: float) -> Metric:
        """Return a metric by which rough changes of images (B, C, H, W) are longer.

        The eigenvalues are ``(1 + |f|)^(2·power)`` for the cosine of each frequency. Natural images
        have amplitudes of about ``1/|f|``, so with a power of one all parts of an image are equally
        far away. It is empty if the shape is not that of images, or the power is zero.
        """
        if len(shape) != IMAGE_AXES or not power or shape[2] * shape[3] == 1:
            return cls()
        values = frequencies(*shape[2:]).pow(2 * power)
        rows, columns = (cosine_basis(length) for length in shape[2:])
        return cls(shape[0] * shape[1], values / values.mean(), rows, columns)

    @classmethod
    def of_vectors(cls, count: int, covariance: Tensor) -> Metric:
        """Return the metric of ``count`` vectors whose entries have a covariance (W, W)."""
        variances, vectors = torch.linalg.eigh(covariance.double())
        values = 1 / variances.clamp_min(float(variances[-1]) * 1e-12)
        one = torch.ones(1, 1, dtype=torch.double)
        return cls(count, (values / values.mean())[None], one, vectors.T.contiguous())

    @property
    def covered(self) -> int:
        """Return how many of the unknowns are in blocks."""
        return 0 if self.values is None else self.blocks * self.values.numel()

    @cached_property
    def matrix(self) -> Tensor:
        """Return the matrix (HW, HW) of a block."""
        if self.values is None or self.rows is None or self.columns is None:
            raise ValueError("expected a metric of blocks")
        both = product_basis(self.rows, self.columns)
        return both.T @ (both * self.values.reshape(-1, 1))

    def scaled(self, u: Tensor, factor: Callable[[Tensor], Tensor]) -> Tensor:
        """Return a change (n,), each part of it times a function of how much the part counts."""
        one = factor(torch.ones((), dtype=u.dtype))
        if self.values is None or self.rows is None or self.columns is None:
            return u * one
        waves = self.rows @ u[: self.covered].view(-1, *self.values.shape) @ self.columns.T
        blocks = self.rows.T @ (waves * factor(self.values)) @ self.columns
        return torch.cat([blocks.reshape(-1), u[self.covered :] * one])

    def damped(self, normal: Tensor, damping: float) -> Tensor:
        """Return a normal matrix (n, n) with ``damping`` times the length of each change added.

        The unit of length of an unknown is its own entry of the diagonal, that of blocks the mean
        over all of them.
        """
        diagonal = normal.diagonal()
        lengths = damping * diagonal.clamp_min(float(diagonal.max()) * 1e-30)
        damped, covered = normal.clone(), self.covered
        damped.diagonal()[covered:].add_(lengths[covered:])
        if covered:
            own, size = self.matrix * lengths[:covered].mean(), len(self.matrix)
            for begin in range(0, covered, size):
                damped[begin : begin + size, begin : begin + size] += own
        return damped


def cosine_basis(length: int) -> Tensor:
    """Return the orthonormal cosines (frequency, place) on ``length`` places."""
    k = torch.arange(length, dtype=torch.double)
    basis = torch.cos(math.pi * (k + 0.5) * k[:, None] / length) * math.sqrt(2 / length)
    basis[0] /= math.sqrt(2)
    return basis


def frequencies(height: int, width: int) -> Tensor:
    """Return ``1 + |f|`` for each frequency (H, W) of an image."""
    f, g = (torch.arange(length, dtype=torch.double) for length in (height, width))
    return 1 + (f[:, None].square() + g.square()).sqrt()


def product_basis(rows: Tensor, columns: Tensor) -> Tensor:
    """Return the products (HW, HW) of every row of one basis with every row of another."""
    both = torch.einsum("ai,bj->abij", rows, columns)
    return both.reshape(len(rows) * len(columns), -1)


CONTRAST = 0.25  # the standard deviation of a pixel of range one, of images in general
COLOUR_CORRELATION = 0.9  # between the colours of a pixel


def image_precision(shape: tuple[int, ...]) -> Tensor:
    """Return the inverse covariance (n, n) of the n entries of an input of this shape.

    Neighbouring pixels are alike, and the colours of a pixel too: the amplitude of a cosine of
    frequency ``f`` is taken to be proportional to ``1/(1 + |f|)``, as in photographs. Inputs that
    are not images have independent entries.
    """
    if len(shape) != IMAGE_AXES - 1:
        entries = int(torch.Size(shape).numel())
        return torch.eye(entries, dtype=torch.double) / CONTRAST**2
    channels, height, width = shape
    power = frequencies(height, width).pow(-2).reshape(-1, 1)
    basis = product_basis(cosine_basis(height), cosine_basis(width))
    smooth = basis.T @ (basis * (power.mean() / power))
    alike = torch.full((channels, channels), COLOUR_CORRELATION, dtype=torch.double)
    alike.fill_diagonal_(1.0)
    whole = torch.kron(torch.linalg.inv(alike).contiguous(), smooth.contiguous())
    return whole / CONTRAST**2
