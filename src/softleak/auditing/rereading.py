"""This module looks again at a share that no label explains, at another scale or sign."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from softleak.results import Reading, Recovery, Status
from softleak.share import GradientShare

Recover = Callable[[GradientShare], Recovery]


def reread(recovery: Recovery, share: GradientShare, recover: Recover, signs: bool) -> Recovery:
    """Return the recovery, with a reading at another scale if exactly one exists.

    ``recover`` takes the scale for unknown. ``signs`` says that the sign is unknown as well: a
    difference of weights has the other one.
    """
    if recovery.status is not Status.NO_SOLUTION:
        return recovery
    tried = [(1.0, recover(share)), *([(-1.0, recover(share.scaled(-1)))] if signs else [])]
    unique = [(sign, one) for sign, one in tried if one.status is Status.UNIQUE]
    if len(unique) != 1:
        return recovery
    ((sign, found),) = unique
    if found.label is None:
        return recovery
    what = "another scale" if sign > 0 else "another scale and sign (a difference of weights)"
    message = (
        f"taken as the gradient itself, the share means no label at all; at {what} it means one "
        f"label, of class {int(found.label.argmax())}. If you know which, say so by the kind of "
        "the share"
    )
    reading = Reading(found.label, sign * found.scale, found.family)
    return replace(
        recovery, status=Status.AMBIGUOUS, message=message, label=found.label, readings=(reading,)
    )
