"""This module answers for shares with weight decay, which may be so small that it looks like
rounding.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from softleak.factors import factor
from softleak.knowledge import Knowledge
from softleak.labels.decay import without_decay
from softleak.labels.solve import solve
from softleak.results import Recovery, Status
from softleak.share import GradientShare
from softleak.subject import Subject


def solve_single(subject: Subject, knowledge: Knowledge, share: GradientShare) -> Recovery | None:
    """Return the recovery of one share, if it is one sample's to within rounding."""
    factors = factor(subject.head, [share])
    if not bool(factors.rank_one & ~factors.zero):
        return None
    answer = solve(subject, knowledge, factors, [share])[0]
    return answer if factors.balanced(0, answer.scalar) else None


def undo_decay(
    subject: Subject, knowledge: Knowledge, share: GradientShare, *, faint: Tensor | None = None
) -> Recovery | None:
    """Return the recovery without the weight decay, if that is all that is wrong.

    ``faint`` is that of ``without_decay``.
    """
    found = [
        (answer, tried.decay)
        for tried in without_decay(subject, share, faint=faint)
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
    undone = undo_decay(subject, knowledge, share, faint=sums)
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
