"""The bias ratio: with a head that has a bias, its gradient is ``p − y`` and nothing is hidden."""

from __future__ import annotations

import torch
from torch import nn

from softleak.errors import MissingGradient, ModelError, ShareError
from softleak.head import Head
from softleak.labels.classic.gradient import head_gradient
from softleak.labels.classic.results import ClassicResult, Outcome
from softleak.share import GradientShare


def bias_ratio(
    model: nn.Module, share: GradientShare, *, head: str | Head | None = None
) -> ClassicResult:
    """``x = G_r / (G_b)_r`` with r the largest of ``|G_b|``, and ``y = softmax(W x + b) − G_b``."""
    known, sent = head_gradient(model, share, head)
    _check_bias(model, known, share)
    G = sent.double()
    delta = share[known.bias_name].to(G)
    index = int(delta.abs().argmax())
    if not delta[index]:
        return ClassicResult(Outcome.ZERO_GRADIENT)
    feature = G[index] / delta[index]
    p = torch.softmax(known.logits(feature[None])[0] + known.b, dim=-1)
    return ClassicResult(Outcome.CONVERGED, index, 1 / float(delta[index]), p - delta, feature)


def _check_bias(model: nn.Module, head: Head, share: GradientShare) -> None:
    if head.bias_name not in dict(model.named_parameters()):
        raise ModelError(
            f"expected a head with a bias, but {head.name or 'the model'!r} has none; "
            "use recover_label, which finds other evidence"
        )
    if head.bias_name not in share:
        raise MissingGradient(
            f"the share lacks {head.bias_name!r}, the gradient of the head's bias"
        )
    if share[head.bias_name].shape != head.b.shape:
        raise ShareError(
            f"the gradient {head.bias_name!r} should be {tuple(head.b.shape)} as the model's bias, "
            f"got {tuple(share[head.bias_name].shape)}; is this the right model?"
        )
