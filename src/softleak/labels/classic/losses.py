"""The loss of Eq. 5 and the two alternatives of App. C: how far a pseudo label is from its kind.

All are multiplied by 1000, as App. B.1 does before it compares them with 1e-9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from softleak.errors import LabelError

SCALE = 1000.0  # the factor of App. B.1


class Loss(Protocol):
    """A loss of pseudo labels that is zero on the labels it is made for."""

    def __call__(self, y: Tensor) -> Tensor:
        """Return the losses (…) of pseudo labels ``y`` (…, C)."""
        ...


@dataclass(frozen=True)
class Variance:
    """This is the loss of Eq. 5: the biased variance of all but the top ``k`` entries.

    Attributes:
        k: the number of excluded classes: 1 for smoothing, 2 for mixup.
        scale: the factor of App. B.1.
    """

    k: int = 1
    scale: float = SCALE

    def __call__(self, y: Tensor) -> Tensor:
        """Return the losses (…) of pseudo labels ``y`` (…, C)."""
        return self.scale * _rest(y, self.k, fewest=2).var(-1, unbiased=False)


@dataclass(frozen=True)
class MeanSquare:
    """The first loss of App. C: the mean square of all but the top ``k`` entries.

    It is zero on one-hot and on mixed labels.
    """

    k: int = 1
    scale: float = SCALE

    def __call__(self, y: Tensor) -> Tensor:
        """Return the losses (…) of pseudo labels ``y`` (…, C)."""
        return self.scale * _rest(y, self.k, fewest=1).square().mean(-1)


@dataclass(frozen=True)
class NegativeMass:
    """This is the second loss of App. C: ``Σ|ŷ_i| − 1``.

    As the entries sum to one, this is twice the mass below zero. It is linear in ŷ, not quadratic:
    float32 rounding alone leaves some 1e-4 of it, so a search needs a higher threshold than with
    Eq. 5. It is zero on a whole interval of scalars if the label has no zero.
    """

    scale: float = SCALE

    def __call__(self, y: Tensor) -> Tensor:
        """Return the losses (…) of pseudo labels ``y`` (…, C)."""
        return self.scale * (y.abs().sum(-1) - 1)


def _rest(y: Tensor, k: int, *, fewest: int) -> Tensor:
    """Return the entries (…, C − k) outside the exclusion set."""
    classes = y.shape[-1]
    if k < 1 or classes - k < fewest:
        raise LabelError(
            f"expected from 1 to {classes - fewest} excluded classes of {classes}, got k={k}"
        )
    return y.topk(classes - k, dim=-1, largest=False, sorted=False).values
