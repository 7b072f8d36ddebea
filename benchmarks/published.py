"""The loss as the published code evaluates it, entry by entry in Python, for timing only."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from softleak.paper.classic import FullHead


@dataclass(frozen=True, eq=False)
class EntryByEntry(FullHead):
    """Eq. 7 as printed: find an entry of the feature to divide by, then take one class at a time.

    The published code compares the entries of the feature one after another as Python objects, for
    every scalar, which is most of its running time. ``FullHead`` is the same without these loops.
    """

    def label(self, scalar: Tensor) -> Tensor:
        """Return the label (C,) that belongs to a scalar."""
        x = scalar.to(self.row.g) * self.row.g
        p = linear(x, self.row.W, self.row.b).softmax(-1)
        values = x.detach().abs().unbind()
        entry = max(range(len(values)), key=values.__getitem__)
        scale = self.row.g[entry] / x[entry]
        y = torch.zeros_like(p)
        for i, p_i in enumerate(p):
            y[i] = p_i - self.row.ratios[i] * scale
        return y
