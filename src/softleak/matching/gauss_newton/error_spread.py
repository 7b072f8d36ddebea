"""This module computes how errors of a share move the inputs that it determines."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.matching.gauss_newton.normal_step import NormalEquations

BLIND = 1e-9  # the part of an entry in directions of which nothing is known, beyond rounding


@dataclass(frozen=True, eq=False)
class Spread:
    """This holds how errors of the share move the inputs.

    Attributes:
        error: the standard error of each pixel, (pixels,); infinite if it is not determined.
        spectrum: the standard errors along the principal directions, increasing; infinite along a
            direction of which the share says nothing.
        directions: the principal directions (pixels, pixels), in columns, in the same order.
        label_error: the largest standard error of a label's entry.
    """

    error: Tensor
    spectrum: Tensor
    directions: Tensor
    label_error: float


def spread_of(normal: NormalEquations, pushed: Tensor, pixels: int) -> Spread:
    """Return how errors move the inputs, with the labels left free.

    The covariance of independent errors of one standard error is the inverse of the normal matrix.
    Its shape is kept and its size is set by what drawn errors do, which are correlated.

    Args:
        normal: the normal equations at the solution.
        pushed: what the Jacobian makes of drawn errors, ``Jᵀe`` (K, n).
        pixels: how many of the n unknowns are pixels.
    """
    h, rest = normal.matrix, normal.matrix[pixels:, pixels:]
    across = torch.linalg.solve(rest, h[pixels:, :pixels])
    own = h[:pixels, :pixels] - h[:pixels, pixels:] @ across
    values, vectors = torch.linalg.eigh((own + own.T) / 2)
    values, vectors = values.flip(0), vectors.flip(1)
    # Below its own rounding an eigenvalue is zero: nothing is known along that direction.
    known = values > float(values[0]) * pixels * torch.finfo(torch.double).eps
    slope = pushed[:, :pixels] - pushed[:, pixels:] @ across
    variance = torch.where(known, 1 / values, 0.0)
    moved = (slope @ vectors) * variance
    size = (moved.square().mean(0).sum() / variance.sum()).sqrt()
    lost = (vectors[:, ~known].square().sum(1) > BLIND).to(values)
    error = torch.where(lost > 0, torch.inf, (vectors.square() @ variance).sqrt() * size)
    spectrum = torch.where(known, variance.sqrt() * size, torch.inf)
    labels = (pushed[:, pixels:] - moved @ vectors.T @ h[:pixels, pixels:]) @ torch.linalg.inv(rest)
    return Spread(error, spectrum, vectors, float(labels.square().mean(0).max().sqrt()))
