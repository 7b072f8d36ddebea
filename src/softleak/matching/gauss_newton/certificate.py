"""This module holds what is proved of an image, and says so without any truth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Certificate:
    """This says how well a share determines the inputs that were found, and why it may say so.

    Attributes:
        proved: whether every layer of the share is explained to within its rounding, and the share
            determines every entry of the inputs.
        reason: why it is not proved, in a sentence; empty if it is.
        explained: whether every layer of the share is explained to within its rounding.
        layers: the misfit of every layer, in units of the error that it is expected to carry.
        misfits: the misfit of the whole share after each step, in units of rounding.
        error: the predicted standard error of each entry, in the shape of the inputs; None if the
            equations were not solved so far that an error can be predicted.
        spectrum: the predicted standard errors along the principal directions of the inputs, from
            the best determined direction to the worst.
        undetermined: how many directions the share does not determine.
        seconds: how long it took.
    """

    proved: bool
    reason: str = ""
    explained: bool = False
    layers: Mapping[str, float] = field(default_factory=dict)
    misfits: tuple[float, ...] = ()
    error: Tensor | None = None
    spectrum: Tensor | None = None
    undetermined: int = 0
    seconds: float = 0.0

    @property
    def largest_error(self) -> float:
        """Return the predicted standard error along the worst determined direction."""
        return math.inf if self.spectrum is None else float(self.spectrum[-1])

    def psnr_predicted(self, pixel: Tensor | float = 1.0) -> float:
        """Return the PSNR in dB that ``error`` predicts.

        Args:
            pixel: what one unit of the input is worth in pixels of range one.
        """
        if self.error is None:
            return -math.inf
        return -10 * math.log10(float((self.error * pixel).square().mean()) + 1e-300)
