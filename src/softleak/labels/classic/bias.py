"""The bias ratio: the gradient of a head's bias is ``p − y``, so nothing is hidden."""

from __future__ import annotations

import torch
from torch import nn

from softleak.errors import MissingGradient, ModelError, ShareError
from softleak.head import Head
from softleak.labels.classic.classic_result import ClassicOutcome, ClassicResult
from softleak.labels.classic.gradient import head_gradient
from softleak.share import GradientShare


def bias_ratio(
    model: nn.Module, share: GradientShare, *, head: str | Head | None = None
) -> ClassicResult:
    """Read the label off the gradient of the head's bias.

    The feature is ``x = G_r / (G_b)_r`` with r the largest entry of ``|G_b|``, and the label is
    ``y = softmax(W x + b) − G_b``.

    Args:
        model: the classifier the gradient was computed with.
        share: what the client sent.
        head: the name of the last linear layer, or a ``Head`` that the caller vouches for.

    Returns:
        The label and the feature; ZERO_GRADIENT if the bias's gradient is zero.

    Raises:
        ModelError: if the head has no bias.
        MissingGradient: if the share lacks a gradient of the head.
        ShareError: if the gradient of the bias does not have the model's shape.
    """
    known, sent = head_gradient(model, share, head)
    _check_bias(model, known, share)
    G = sent.double()
    delta = share[known.bias_name].to(G)
    index = int(delta.abs().argmax())
    if not delta[index]:
        return ClassicResult(ClassicOutcome.ZERO_GRADIENT)
    feature = G[index] / delta[index]
    p = torch.softmax(known.logits(feature[None])[0] + known.b, dim=-1)
    return ClassicResult(
        ClassicOutcome.CONVERGED, index, 1 / float(delta[index]), p - delta, feature
    )


def _check_bias(model: nn.Module, head: Head, share: GradientShare) -> None:
    """Raise unless the head has a bias and the share its gradient, in the same shape."""
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
