"""This module holds what one CIFAR file holds, in either distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

PIXELS: Final = 3 * 32 * 32


@dataclass(frozen=True, eq=False)
class CifarBatch:
    """This holds images (N, 32, 32, 3), labels (N,) and whether these are CIFAR-100's fine ones."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    fine: bool


def from_planes(
    planes: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], fine: bool
) -> CifarBatch:
    """Return a batch from rows (N, 3072), each a red, a green and a blue plane."""
    return CifarBatch(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels, fine)
