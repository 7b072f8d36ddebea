"""This module reads shares whose head gradient is zero, or missing, from the head's bias.

If the feature before the head is zero, the gradient of its weight is zero as well and the
prediction is ``softmax(b)``. The gradient of the bias is then ``softmax(b) − y``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from softleak.families import OneHot
from softleak.knowledge import Knowledge
from softleak.labels.certify import simplest_family
from softleak.results import Recovery, Status
from softleak.share import GradientShare
from softleak.subject import Subject

DIFFERENCE_ROUNDINGS = 16.0  # of an entry of p − y: what a softmax and a subtraction may leave


def of_zero_gradient(subject: Subject, knowledge: Knowledge, share: GradientShare) -> Recovery:
    """Return the answer for a zero gradient of the head: ``y = softmax(b) − g_b`` if the bias has
    one.
    """
    head = subject.head
    told = head.bias_name in share and not knowledge.head_only
    g = share[head.bias_name].to(head.W.device).double() if told else None
    if g is not None and g.any() and share.noise(head.weight_name) > 0:
        return from_bias_alone(subject, share)  # weights that did not move prove no zero
    if g is None or not g.any() or knowledge.scale_unknown:
        why = (
            "the label equals the model's prediction to machine precision"
            if g is not None and not g.any()
            else "either the label equals the model's prediction to machine precision, or the "
            "feature before the head is zero"
        )
        return Recovery(Status.ZERO_GRADIENT, f"the head's gradient is exactly zero: {why}")
    return _of_zero_feature(subject, knowledge, share, g)


def _of_zero_feature(
    subject: Subject, knowledge: Knowledge, share: GradientShare, g: Tensor
) -> Recovery:
    head = subject.head
    p = torch.softmax(head.b, -1)
    relative = share.resolution(head.bias_name, head.dtype)
    error = DIFFERENCE_ROUNDINGS * relative * (p + g.abs()) + share.noise(head.bias_name)
    y, bound = p - g, float(error.sum())
    if not bool((y >= -error).all()) or abs(float(g.sum())) > bound:
        return Recovery(
            Status.NO_SOLUTION,
            "the feature before the head is zero, but the gradient of the head's bias is not that "
            "of one sample: the share was scaled or altered",
        )
    label = y.clamp_min(0) / y.clamp_min(0).sum()
    family = simplest_family(label, bound)
    # A mean of several labels is one-hot only if all of them are that one. It may be smoothed
    # though none of them is: two samples of one class and one of each other.
    single = isinstance(family, OneHot) and bound <= knowledge.tolerance
    doubt = "" if single else ", of one sample or the mean of several, if nobody scaled the share"
    return Recovery(
        Status.UNIQUE if single else Status.AMBIGUOUS,
        "the feature before the head is zero, so the label of the cross-entropy loss is softmax(b) "
        f"less the bias gradient{doubt}",
        label,
        torch.zeros_like(head.W[0], dtype=torch.double), float(g.norm()), bound, 0.0,
        family=family, difference=g, complete=single,
    )  # fmt: skip


def from_bias_alone(subject: Subject, share: GradientShare) -> Recovery:
    """Return what is left when the head's weight has no gradient: ``p − y`` itself."""
    head = subject.head
    g = share[head.bias_name].to(head.W.device).double()
    relative = share.resolution(head.bias_name, head.dtype)
    error = DIFFERENCE_ROUNDINGS * relative * float(g.abs().max()) + share.noise(head.bias_name)
    present = (g < -error).nonzero()[:, 0].tolist()
    named = ", ".join(map(str, present)) or "none"
    return Recovery(
        Status.AMBIGUOUS,
        "the share holds no gradient of the head's weight, or one that rounding hides; that of its "
        "bias is p − y up to the share's factor (the mean over the batch): classes proved to be in "
        f"a label: {named}",
        difference=g,
    )
