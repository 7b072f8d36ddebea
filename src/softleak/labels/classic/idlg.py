"""This module holds iDLG (Zhao et al., 2020): the class of a one-hot label from the signs of the
rows.
"""

from __future__ import annotations

import torch
from torch import nn

from softleak.head import Head
from softleak.labels.classic.classic_result import ClassicOutcome, ClassicResult
from softleak.labels.classic.gradient import head_gradient
from softleak.share import GradientShare


def idlg(
    model: nn.Module, share: GradientShare, *, head: str | Head | None = None
) -> ClassicResult:
    """Return the class whose row points against all other rows, as a one-hot label.

    Rows are ``(p_i − y_i) x``. With a one-hot label only the row of its class has a negative
    factor. No class is singled out if there are two rows in all (two classes, or a saturated
    softmax: App. B.3), or if several rows point against several others. The label is assumed to be
    one-hot: for a soft label with a single negative ``p_i − y_i`` the answer is wrong.

    Args:
        model: the classifier the gradient was computed with.
        share: what the client sent.
        head: the name of the last linear layer, or a ``Head`` that the caller vouches for.

    Returns:
        The one-hot label, without a feature; UNDECIDED if no class is singled out.
    """
    known, sent = head_gradient(model, share, head)
    G = sent.double()
    largest = G[G.square().sum(1).argmax()]
    side = torch.sign(G @ largest)
    if not side.any():
        return ClassicResult(ClassicOutcome.ZERO_GRADIENT)
    alone, others = sorted(((side > 0).nonzero(), (side < 0).nonzero()), key=len)
    if len(alone) != 1 or len(others) < 2:
        return ClassicResult(ClassicOutcome.UNDECIDED)
    index = int(alone)
    label = nn.functional.one_hot(torch.tensor(index), known.classes).to(G)
    return ClassicResult(ClassicOutcome.CONVERGED, index, label=label)
