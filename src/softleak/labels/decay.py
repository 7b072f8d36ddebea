"""This module holds weight decay, undone: ``G = δ xᵀ + λ W``.

The columns of ``δ xᵀ`` sum to zero, so those of ``G`` sum to ``λ`` times those of ``W``: a
regression gives ``λ``, and the share without it is that of one sample again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.factors import RANK
from softleak.head import column_sums
from softleak.share import GradientShare
from softleak.subject import Subject
from softleak.vocabulary import Precision


@dataclass(frozen=True)
class DecayTolerances:
    """These tolerances tell weight decay from rounding."""

    least_errors: float = 16.0  # errors: a decay closer to zero than this is none
    left_errors: float = 4.0  # errors of the decay that its removal may leave
    faint_left: float = 0.25  # of the sums over columns: what a decay within rounding may leave


DECAY = DecayTolerances()


COARSE: Mapping[torch.dtype, Precision] = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


@dataclass(frozen=True, eq=False)
class Undecayed:
    """A share without its weight decay, and how large that was."""

    share: GradientShare
    decay: float


def without_decay(
    subject: Subject, share: GradientShare, *, faint: Tensor | None = None
) -> Iterator[Undecayed]:
    """Yield the share without weight decay: of all parameters, and of matrices only, as recipes
    have it.

    Args:
        subject: the model the gradients were computed with.
        share: what was sent.
        faint: the sums (I,) over the columns of the head's gradient, if the share is one sample's
            to within rounding. They are then ``x`` times the rounding of ``Σδ``, and only a decay
            that explains most of them is one: of 180 clean shares it left 84 % or more.
    """
    head = subject.head
    weights = head.column_sums
    size = float(weights.norm())
    if size == 0:
        return
    sent = share[head.weight_name].to(head.W.device)
    sums = column_sums(sent) if faint is None else faint
    decay = float(sums @ weights) / size**2
    left = float((sums - decay * weights).norm())
    if faint is not None and left > DECAY.faint_left * float(sums.norm()):
        return  # most clean shares end here
    G, relative = sent.double(), share.resolution(head.weight_name, head.dtype)
    # Each column sums to zero up to the rounding of its entries.
    off = (relative * G.norm(dim=0)).hypot(
        G.new_tensor(share.noise(head.weight_name) * len(G) ** 0.5)
    )
    error = float((off * weights).norm()) / size**2
    if abs(decay) <= DECAY.least_errors * error or left > RANK.second_value * float(off.norm()):
        return
    for smallest in (0, 2):
        yield Undecayed(_removed(subject, share, decay, error, smallest), decay)


def _removed(
    subject: Subject, share: GradientShare, decay: float, error: float, smallest: int
) -> GradientShare:
    """Return the share less ``decay`` times every parameter of at least ``smallest`` dimensions."""
    decayed = {
        name: weight.detach().double()
        for name, weight in subject.parameters.items()
        if name in share and weight.ndim >= smallest
    }

    def remove(name: str, gradient: Tensor) -> Tensor:
        if name not in decayed:
            return gradient
        return gradient.double() - decay * decayed[name].to(gradient.device)

    rounding = dict(share.rounding)
    for name, weight in decayed.items():
        unsure = DECAY.left_errors * error + share.resolution(name, subject.head.dtype) * abs(decay)
        rounding[name] = share.noise(name) + unsure * float(weight.abs().max())
    changed = {name: remove(name, gradient) for name, gradient in share.items()}
    sent = COARSE.get(share[subject.head.weight_name].dtype)
    return replace(share, gradients=changed, rounding=rounding, precision=share.precision or sent)
