"""iDLG (Zhao et al., 2020): the class of a one-hot label from the signs of the rows."""

from __future__ import annotations

import torch
from torch import nn

from softleak.head import Head
from softleak.labels.classic.gradient import head_gradient
from softleak.labels.classic.results import ClassicResult, Outcome
from softleak.share import GradientShare


def idlg(
    model: nn.Module, share: GradientShare, *, head: str | Head | None = None
) -> ClassicResult:
    """The class whose row points against all the others, as a one-hot label.

    Rows are ``(p_i − y_i) x``: with a one-hot label only that of its class has a negative factor.
    If two rows are all there is (two classes, or a saturated softmax: App. B.3), or several rows
    stand against several, no class is singled out. That the label is one-hot is assumed: a soft
    label with a single negative ``p_i − y_i`` is answered, wrongly, by its class.
    """
    known, sent = head_gradient(model, share, head)
    G = sent.double()
    largest = G[G.square().sum(1).argmax()]
    side = torch.sign(G @ largest)
    if not side.any():
        return ClassicResult(Outcome.ZERO_GRADIENT)
    alone, others = sorted(((side > 0).nonzero(), (side < 0).nonzero()), key=len)
    if len(alone) != 1 or len(others) < 2:
        return ClassicResult(Outcome.UNDECIDED)
    index = int(alone)
    label = nn.functional.one_hot(torch.tensor(index), known.classes).to(G)
    return ClassicResult(Outcome.CONVERGED, index, label=label)
