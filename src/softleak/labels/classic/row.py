"""The row of the gradient that stands for the feature (§3.1), and the ratios of all rows to it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from softleak.head import Head
from softleak.labels.classic.gradient import head_gradient
from softleak.share import GradientShare


@dataclass(frozen=True, eq=False)
class Row:
    """What Eq. 7 needs, in the share's dtype: ``g = g_r / coefficient`` (I,), ``g_i / g`` (C,).

    The searched scalar ``s`` is ``coefficient × λ_r``: the feature is ``s g = λ_r g_r``. Algorithms
    1 and 2 print ``coe × g_m``, but then the first interval would begin at ``λ_r = 2.8``, beyond
    most solutions (``|λ_r| ≥ 1``); the published code divides, and so do we.
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
    ) -> Row | None:
        """The row of largest |sum|; None if it is zero."""
        known, G = head_gradient(model, share, head)
        index = int(G.sum(1).abs().argmax())
        if not G[index].any():
            return None
        W = model.get_parameter(known.weight_name).detach().to(G)
        g = G[index] / coefficient
        # Item-wise division gives the same for every entry; the largest one divides best.
        entry = g.abs().argmax()
        return cls(index, g, G[:, entry] / g[entry], W, known.b.to(G), coefficient)

    def feature(self, scalar: float) -> Tensor:
        """``s g`` (I,) in float64."""
        return scalar * self.g.double()
