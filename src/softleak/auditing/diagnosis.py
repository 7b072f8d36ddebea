"""This module says what a share looks like, where the verdict alone would mislead."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from softleak.errors import ShareError
from softleak.labels.signs import is_sign_pattern
from softleak.results import Recovery, Status
from softleak.share import GradientShare
from softleak.subject import Subject


@dataclass(frozen=True)
class DiagnosisThresholds:
    """These thresholds tell weights and weight decay from gradients."""

    near_weights: float = (
        0.5  # a share this near to the weights, relative to their size, is not a gradient
    )
    parallel: float = 0.99  # the cosine of the angle to the weights
    roundings: float = 1e3  # a sum of so many roundings is not due to rounding


DIAGNOSIS = DiagnosisThresholds()


SETTLED = (Status.UNIQUE, Status.ZERO_GRADIENT)


def check_not_weights(subject: Subject, share: GradientShare) -> None:
    """Raise ``ShareError`` if what was given as a gradient is the model's own weights, or nearly.

    Weights after a step are near those before it; a gradient is not.
    """
    sizes = {n: size for n, size in subject.once(_parameter_sizes).items() if n in share}
    size, distance = math.hypot(*sizes.values()), 0.0
    for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
        weight = subject.parameters[name].detach()
        off = float((share[name].to(weight.device).double() - weight.double()).norm())
        distance = math.hypot(distance, off)
        if distance >= DIAGNOSIS.near_weights * size:
            return  # mostly after the largest layer
    if size > 0:
        raise ShareError(
            "the share equals the model's own weights "
            f"{'exactly' if not distance else f'to within {distance / size:.2g} of their size'}: "
            "the file holds weights, not gradients; say --kind weights to audit the step from "
            "--weights to it"
        )


def _parameter_sizes(subject: Subject) -> dict[str, float]:
    """Return the length of every parameter."""
    return {n: float(p.detach().double().norm()) for n, p in subject.parameters.items()}


def notes(subject: Subject, share: GradientShare, recovery: Recovery) -> tuple[str, ...]:
    """Return notes that fit the share better than the verdict does, if no label was found."""
    if recovery.status in SETTLED:
        return ()
    if is_sign_pattern(share[subject.head.weight_name]):
        return (
            "every entry of the head's gradient has the same size: the share is a sign pattern, as "
            "one step of Adam or signSGD leaves it, and not a gradient",
        )
    found = (_dropout(subject, recovery), _decay(subject, share))
    return tuple(note for note in found if note)


def _dropout(subject: Subject, recovery: Recovery) -> str:
    """Return a note if layers disagree and the model has dropout that the audit left out."""
    dropping = [
        name for name, module in subject.model.named_modules()
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p and not module.training
    ]  # fmt: skip
    against = any(piece.refutes for piece in recovery.evidence)
    unexplained = recovery.status in (Status.NO_SOLUTION, Status.GUESS, Status.PROBABLE)
    if not dropping or not (against or unexplained):
        return ""
    return (
        f"the model has dropout ({', '.join(dropping[:3])}) and was audited in eval mode: layers "
        "contradict each other as they do if the client dropped entries; try --train-mode"
    )


def _decay(subject: Subject, share: GradientShare) -> str:
    """Return a note on weight decay, if the share shows it.

    Sums over classes are zero in a gradient of the cross-entropy; weight decay adds λ W to it.
    """
    head = subject.head
    G, W = share[head.weight_name].double().cpu(), head.W.double().cpu()
    sums, own = G.sum(0), W.sum(0)
    rounding = share.resolution(head.weight_name, head.dtype) * float(G.abs().sum(0).max())
    if float(sums.norm()) <= DIAGNOSIS.roundings * (rounding + share.noise(head.weight_name)):
        return ""
    if not float(own.norm()) or float(torch.cosine_similarity(sums, own, 0)) < DIAGNOSIS.parallel:
        return ""
    factor = float(sums @ own / own.square().sum())
    return (
        "what no cross-entropy explains of the head's gradient is parallel to the head's weights, "
        f"as weight decay of {factor:.2g} leaves it"
    )
