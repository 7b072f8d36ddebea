"""This module finds where an attack ends as a defence grows.

Leakage need not fall steadily: what a pruned share gives away can come back as more is pruned. So
an end has no success beyond it, and bisection only narrows the gap between the strongest setting
that leaked and the next; failures before it are no end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from softleak.auditing.rates import Leak, Point


def end_of(
    points: Sequence[Point], leak: Leak, bisections: int, succeeds: Callable[[float], bool]
) -> float | None:
    """Return the weakest setting without a success, stronger ones having none either.

    Args:
        points: how often attacks succeeded, from the weakest setting to the strongest.
        leak: the attack.
        bisections: the steps of bisection, in the logarithm of the setting.
        succeeds: says whether the attack succeeds at a setting that is no point.

    Returns:
        The setting; None if the attack succeeds at the strongest one, or was not tried.
    """
    known = [point for point in points if leak in point.rates]
    gone = len(known)
    while gone and known[gone - 1].rates[leak].hits == 0:
        gone -= 1
    if gone == len(known):
        return None
    if gone == 0:
        return known[0].setting
    weak, strong = known[gone - 1].setting, known[gone].setting
    for _ in range(bisections):
        middle = math.sqrt(weak * strong)
        weak, strong = (middle, strong) if succeeds(middle) else (weak, middle)
    return strong


def from_end(points: Sequence[Point], end: float) -> list[Point]:
    """Return the points at which a defence is at least as strong as at one setting."""
    grows = points[-1].setting >= points[0].setting
    return [p for p in points if (p.setting >= end if grows else p.setting <= end)]
