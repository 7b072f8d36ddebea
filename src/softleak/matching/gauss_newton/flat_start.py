"""This module looks for the colour of an image, before any step is taken.

Steps follow the slope of the misfit. If an image is far from grey, the slope at grey leads astray.
The colour of a whole image is so few numbers that it can be found by trying, without any slope.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from softleak.matching.gauss_newton.image_metric import IMAGE_AXES
from softleak.matching.gauss_newton.share_equations import ShareEquations
from softleak.matching.stopping import Stopping

COLOURED = 3  # the largest number of channels whose levels are tried in every combination


@dataclass(frozen=True)
class FlatSearch:
    """This looks for the flat colour of each image that leaves the least misfit.

    Attributes:
        levels: the values that are tried in each channel, in units of the input. If there are more
            than three channels, all of them have the same value.
    """

    levels: tuple[float, ...] = (-2.0, -1.2, -0.5, 0.0, 0.5, 1.2, 2.0)

    def __call__(self, equations: ShareEquations, start: Tensor, stopping: Stopping) -> Tensor:
        """Return flat images (B, …), or the start itself if the inputs are not images.

        Images of a batch keep what the start has beside the colour. If two of them were alike, each
        step would treat them alike.

        Args:
            equations: what the inputs should fulfil.
            start: the inputs to begin with, near to grey.
            stopping: it is asked whether to go on.
        """
        if start.ndim != IMAGE_AXES:
            return start
        start = start if len(start) > 1 else torch.zeros_like(start)
        for image in range(len(start)):
            least, best = misfit(equations, start), start
            for colour in self.colours(start.shape[1]):
                if stopping.over:
                    return best
                flat = start.clone()
                flat[image] += start.new_tensor(colour)[:, None, None]
                if (left := misfit(equations, flat)) < least:
                    least, best = left, flat
            start = best
        return start

    def colours(self, channels: int) -> list[tuple[float, ...]]:
        """Return the colours that are tried, one value for each channel."""
        if channels > COLOURED:
            return [(level,) * channels for level in self.levels]
        return list(product(self.levels, repeat=channels))


def misfit(equations: ShareEquations, x: Tensor) -> float:
    """Return the squared misfit of inputs (B, …); infinity where the network overflows."""
    z = equations.function.pack(x.double(), equations.known.labels.double())
    squares = float(equations.residual(z).square().sum())
    return squares if math.isfinite(squares) else math.inf
