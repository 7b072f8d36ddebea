"""Answer for shares with weight decay, which may be so small that it looks like
rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.core.factors import RANK, factor
from softleak.core.head import column_sums
from softleak.core.knowledge import Knowledge
from softleak.core.results import Recovery, Status
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.core.vocabulary import Precision
from softleak.labels.solve import solve

# What tells weight decay from rounding.
DECAY_LEAST_ERRORS = 16.0  # errors: a decay closer to zero than this is none
DECAY_LEFT_ERRORS = 4.0  # errors of the decay that its removal may leave
DECAY_SMALL_LEFT = 0.25  # of the sums over columns: what a decay within rounding may leave


COARSE: Mapping[torch.dtype, Precision] = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


@dataclass(frozen=True, eq=False)
class Undecayed:
    """A share without its weight decay, and how large that was."""

    share: GradientShare
    decay: float


def without_decay(
    subject: Subject, share: GradientShare, *, sums: Tensor | None = None
) -> Iterator[Undecayed]:
    """Yield the share without weight decay: of all parameters, and of matrices only, as recipes
    have it.

    Args:
        sums: the sums (I,) over the columns of the head's gradient, if the share is one sample's
            to within rounding. They are then ``x`` times the rounding of ``Σδ``, and only a decay
            that explains most of them is one: of 180 clean shares it left 84 % or more.
    """
    head = subject.head
    weights = head.column_sums
    size = float(weights.norm())
    if size == 0:
        return
    sent = share[head.weight_name].to(head.W.device)
    of_columns = column_sums(sent) if sums is None else sums
    decay = float(of_columns @ weights) / size**2
    left = float((of_columns - decay * weights).norm())
    if sums is not None and left > DECAY_SMALL_LEFT * float(of_columns.norm()):
        return  # most clean shares end here
    G, relative = sent.double(), share.resolution(head.weight_name, head.dtype)
    # Each column sums to zero up to the rounding of its entries.
    off = (relative * G.norm(dim=0)).hypot(
        G.new_tensor(share.noise(head.weight_name) * len(G) ** 0.5)
    )
    error = float((off * weights).norm()) / size**2
    if abs(decay) <= DECAY_LEAST_ERRORS * error or left > RANK.second_value * float(off.norm()):
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
        unsure = DECAY_LEFT_ERRORS * error + share.resolution(name, subject.head.dtype) * abs(decay)
        rounding[name] = share.noise(name) + unsure * float(weight.abs().max())
    changed = {name: remove(name, gradient) for name, gradient in share.items()}
    sent = COARSE.get(share[subject.head.weight_name].dtype)
    return replace(share, gradients=changed, rounding=rounding, precision=share.precision or sent)


def solve_single(subject: Subject, knowledge: Knowledge, share: GradientShare) -> Recovery | None:
    """Return the recovery of one share, if it is one sample's to within rounding."""
    factors = factor(subject.head, [share])
    if not bool(factors.rank_one & ~factors.zero):
        return None
    answer = solve(subject, knowledge, factors, [share])[0]
    return answer if factors.balanced(0, answer.scalar) else None


def undo_decay(
    subject: Subject, knowledge: Knowledge, share: GradientShare, *, sums: Tensor | None = None
) -> Recovery | None:
    """Return the recovery without the weight decay, if that is all that is wrong.

    ``sums`` is that of ``without_decay``.
    """
    found = [
        (answer, tried.decay)
        for tried in without_decay(subject, share, sums=sums)
        if (answer := solve_single(subject, knowledge, tried.share)) is not None
    ]
    clean = [pair for pair in found if pair[0].status is Status.UNIQUE] or found
    if not clean:
        return None
    answer, decay = clean[0]
    return replace(answer, message=f"{answer.message}; a weight decay of {decay:.3g} was undone")


def allow_for_decay(
    subject: Subject, knowledge: Knowledge, share: GradientShare, sums: Tensor, found: Recovery
) -> Recovery:
    """Return the answer for a share that is one sample's to within rounding, decayed or not.

    A decay ``λ W`` that is hardly more than the rounding of ``G`` leaves it a product, but moves
    ``u`` by ``λ W v``, of which the rounding of ``u`` knows nothing. The ``sums`` (I,) over columns
    show it long before that. Its error then holds the label as it would be read with the decay,
    too.
    """
    undone = undo_decay(subject, knowledge, share, sums=sums)
    if undone is None or undone.label is None:
        return found
    if found.label is None:
        return undone
    apart = float((undone.label - found.label).abs().sum())
    error = max(undone.error, found.error + apart)
    status = undone.status
    if status is Status.UNIQUE and error > knowledge.tolerance:
        status = Status.AMBIGUOUS
    return replace(undone, error=error, status=status)
