"""This module looks for a coarse image near the solution, before any step is taken.

Steps follow the slope of the misfit. If an image is far from grey, the slope at grey leads astray.
A coarse image has few numbers, so that it can be found by trying, without any slope.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.matching.gauss_newton.image_metric import IMAGE_AXES, cosine_basis
from softleak.matching.gauss_newton.share_equations import ShareEquations
from softleak.matching.stopping import Stopping


@dataclass(frozen=True)
class CoarseSearch:
    """This changes a start by one low cosine at a time, whichever lowers the misfit most.

    Each change is of one channel or of all channels of one image. Stages allow more and more
    cosines, so that the colour of the whole image is found first.

    Attributes:
        cosines: the number of cosines along each side, stage by stage.
        first: the size of the first changes, in units of the input. It is halved when no change of
            that size helps.
        least: a stage ends when changes are smaller than this.
        changes: the largest number of changes in one stage.
    """

    cosines: tuple[int, ...] = (1, 2, 3, 4)
    first: float = 1.6
    least: float = 0.1
    changes: int = 12

    def __call__(self, equations: ShareEquations, z: Tensor, stopping: Stopping) -> Tensor:
        """Return unknowns (n,) of less misfit, or ``z`` itself if the inputs are not images.

        Args:
            equations: what the unknowns should fulfil.
            z: the unknowns (n,) to begin with.
            stopping: it is asked whether to go on.
        """
        shape = equations.function.shape
        if len(shape) != IMAGE_AXES:
            return z
        for count in self.cosines:
            if count <= min(shape[2:]):
                changes = coarse_changes(shape, count)
                z = self._stage(equations, z, changes.to(z), stopping)
        return z

    def _stage(
        self, equations: ShareEquations, z: Tensor, changes: Tensor, stopping: Stopping
    ) -> Tensor:
        """Return the unknowns after the best changes of (K, …) have been made, one by one."""
        padded = torch.nn.functional.pad(changes.flatten(1), (0, len(z) - changes[0].numel()))
        both = torch.cat([padded, -padded])
        size, least = self.first, _misfit(equations, z)
        for _ in range(self.changes):
            if size < self.least or stopping.over:
                break
            misfits = [_misfit(equations, z + size * change) for change in both]
            best = min(range(len(both)), key=misfits.__getitem__)
            if misfits[best] < least:
                z, least = z + size * both[best], misfits[best]
            else:
                size /= 2
        return z


def coarse_changes(shape: tuple[int, ...], count: int) -> Tensor:
    """Return the changes (K, B, C, H, W) by the lowest cosines, ``count`` along each side.

    Each is of one image of the batch, and of one of its channels or all of them. Its largest entry
    is ``1 / (1 + f + g)`` at frequencies ``f`` and ``g``, as parts of images become smaller.
    """
    images, channels, high, wide = shape
    rows, columns = (_waves(length, count) for length in (high, wide))
    waves = torch.einsum("ai,bj->abij", rows, columns)
    order = torch.arange(count)
    waves = (waves / (1 + order[:, None] + order)[..., None, None]).flatten(0, 1)
    colours = torch.eye(channels, dtype=torch.double)
    if channels > 1:
        colours = torch.cat([colours, torch.ones(1, channels, dtype=torch.double)])
    places = torch.eye(images, dtype=torch.double)
    every = torch.einsum("nb,kc,fij->nkfbcij", places, colours, waves)
    return every.flatten(0, 2)


def _waves(length: int, count: int) -> Tensor:
    """Return the lowest cosines (count, length), with a largest entry of about one."""
    waves = cosine_basis(length)[:count] * math.sqrt(length / 2)
    waves[0] *= math.sqrt(2)
    return waves


def _misfit(equations: ShareEquations, z: Tensor) -> float:
    """Return the sum of squared residuals at ``z``; infinity where the network overflows."""
    squares = float(equations.residual(z).square().sum())
    return squares if math.isfinite(squares) else math.inf
