"""The row of the gradient that stands for the feature (§3.1), and the ratios of all rows to it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from softleak.head import Head
from softleak.labels.classic.gradient import head_gradient
from softleak.share import GradientShare


@dataclass(frozen=True, eq=False)
class RowRatios:
    """What Eq. 7 needs of a share, in the share's dtype.

    The searched scalar is ``s = coefficient × λ_r``, so that the feature is ``s g = λ_r g_r``.
    Algorithms 1 and 2 print ``coe × g_m``. The first interval would then begin at ``λ_r = 2.8``,
    beyond most solutions (``|λ_r| ≥ 1``). The published code divides, and so does this.

    Attributes:
        index: r, the row of the largest absolute sum.
        g: (I,) ``g_r / coefficient``.
        ratios: (C,) the ratio of every row to ``g``.
        W: (C, I) the head's weight.
        b: (C,) the head's bias.
        coefficient: what the row is divided by.
    """

    index: int
    g: Tensor
    ratios: Tensor
    W: Tensor
    b: Tensor
    coefficient: float

    @classmethod
    def of(
        cls,
        model: nn.Module,
        share: GradientShare,
        *,
        coefficient: float = 1.0,
        head: str | Head | None = None,
    ) -> RowRatios | None:
        """Return the row of the largest absolute sum, or None if that row is zero.

        Args:
            model: the classifier the gradient was computed with.
            share: what the client sent.
            coefficient: what the row is divided by.
            head: the name of the last linear layer, or a ``Head`` that the caller vouches for.
        """
        known, G = head_gradient(model, share, head)
        index = int(G.sum(1).abs().argmax())
        if not G[index].any():
            return None
        W = model.get_parameter(known.weight_name).detach().to(G)
        g = G[index] / coefficient
        # Every entry gives the same ratios; the largest one gives them with the least rounding.
        entry = g.abs().argmax()
        return cls(index, g, G[:, entry] / g[entry], W, known.b.to(G), coefficient)

    def feature(self, scalar: float) -> Tensor:
        """Return the feature ``s g`` (I,) in float64."""
        return scalar * self.g.double()
