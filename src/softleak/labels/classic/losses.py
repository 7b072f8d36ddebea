"""Eq. 5 and the two alternatives of App. C: how far a pseudo label is from its kind.

All are multiplied by 1000, as App. B.1 does before comparing with 1e-9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from softleak.errors import LabelError

SCALE = 1000.0


class Loss(Protocol):
    """A loss of pseudo labels ``y`` (…, C), zero on the labels it is made for."""

    def __call__(self, y: Tensor) -> Tensor:
        """(…) the losses."""
        ...


@dataclass(frozen=True)
class Variance:
    """Eq. 5: the biased variance of all but the top ``k``. k = 1 for smoothing, 2 for mixup."""

    k: int = 1
    scale: float = SCALE

    def __call__(self, y: Tensor) -> Tensor:
        """(…) the losses."""
        return self.scale * _rest(y, self.k, fewest=2).var(-1, unbiased=False)


@dataclass(frozen=True)
class MeanSquare:
    """App. C, first: the mean square of all but the top ``k``. Zero on one-hot and mixed labels."""

    k: int = 1
    scale: float = SCALE

    def __call__(self, y: Tensor) -> Tensor:
        """(…) the losses."""
        return self.scale * _rest(y, self.k, fewest=1).square().mean(-1)


@dataclass(frozen=True)
class NegativeMass:
    """App. C, second: ``Σ|ŷ_i| − 1``, as the entries sum to one twice the mass below zero.

    Linear in ŷ, not quadratic: rounding alone leaves some 1e-4 of it in float32, so a search
    needs a higher threshold than with Eq. 5. Zero on a whole interval if the label has no zero.
    """

    scale: float = SCALE

    def __call__(self, y: Tensor) -> Tensor:
        """(…) the losses."""
        return self.scale * (y.abs().sum(-1) - 1)


def _rest(y: Tensor, k: int, *, fewest: int) -> Tensor:
    """(…, C − k) the entries outside the exclusion set."""
    classes = y.shape[-1]
    if k < 1 or classes - k < fewest:
        raise LabelError(
            f"expected from 1 to {classes - fewest} excluded classes of {classes}, got k={k}"
        )
    return y.topk(classes - k, dim=-1, largest=False, sorted=False).values
