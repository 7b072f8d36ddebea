"""What one CIFAR file holds, whichever of the two distributions it is from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

PIXELS: Final = 3 * 32 * 32


@dataclass(frozen=True, eq=False)
class Batch:
    """Images (N, 32, 32, 3), labels (N,) and whether they are CIFAR-100's fine labels."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    fine: bool


def from_planes(planes: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], fine: bool) -> Batch:
    """A batch from rows (N, 3072), each a red, a green and a blue plane."""
    return Batch(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels, fine)
