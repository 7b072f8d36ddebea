"""Weight decay, undone: ``G = δ xᵀ + λ W``.

The columns of ``δ xᵀ`` sum to zero, so those of ``G`` sum to ``λ`` times those of ``W``: a
regression gives ``λ``, and the share without it is that of one sample again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.factors import RANK_TOLERANCE
from softleak.labels.solve import Problem
from softleak.share import GradientShare, Precision

COARSE: Mapping[torch.dtype, Precision] = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
SURE = 16.0  # errors: a decay closer to zero is none
SLACK = 4.0  # errors of the decay that its removal may leave


@dataclass(frozen=True, eq=False)
class Undecayed:
    """A share without its weight decay, and how large that was."""

    share: GradientShare
    decay: float


def without_decay(problem: Problem, share: GradientShare) -> Iterator[Undecayed]:
    """The share if all parameters decayed, and if only matrices did, as many recipes have it."""
    head = problem.head
    G, W = share[head.weight_name].to(head.W.device).double(), head.W.double()
    sums, weights = G.sum(0), W.sum(0)
    size = float(weights.norm())
    if size == 0:
        return
    relative = share.resolution(head.weight_name, head.dtype)
    # Each column sums to zero up to the rounding of its entries.
    off = (relative * G.norm(dim=0)).hypot(
        G.new_tensor(share.noise(head.weight_name) * len(G) ** 0.5)
    )
    error = float((off * weights).norm()) / size**2
    decay = float(sums @ weights) / size**2
    left = float((sums - decay * weights).norm())
    if abs(decay) <= SURE * error or left > RANK_TOLERANCE * float(off.norm()):
        return
    for smallest in (0, 2):
        yield Undecayed(_removed(problem, share, decay, error, smallest), decay)


def _removed(
    problem: Problem, share: GradientShare, decay: float, error: float, smallest: int
) -> GradientShare:
    """The share less ``decay`` times every parameter of at least ``smallest`` dimensions."""
    decayed = {
        name: weight.detach().double()
        for name, weight in problem.parameters.items()
        if name in share and weight.ndim >= smallest
    }

    def remove(name: str, gradient: Tensor) -> Tensor:
        if name not in decayed:
            return gradient
        return gradient.double() - decay * decayed[name].to(gradient.device)

    rounding = dict(share.rounding)
    for name, weight in decayed.items():
        unsure = SLACK * error + share.resolution(name, problem.head.dtype) * abs(decay)
        rounding[name] = share.noise(name) + unsure * float(weight.abs().max())
    changed = {name: remove(name, gradient) for name, gradient in share.items()}
    sent = COARSE.get(share[problem.head.weight_name].dtype)
    return replace(share, gradients=changed, rounding=rounding, precision=share.precision or sent)
