"""This module lays out how Gauss–Newton went: misfits by step, and errors by direction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from softleak.auditing.wording import written
from softleak.matching.gauss_newton import Certificate
from softleak.report.chart import FRAME

MOST_POINTS = 120  # points of a curve; more would not be seen


@dataclass(frozen=True)
class LogCurve:
    """This is a curve of positive numbers on a logarithmic axis, ready to be drawn as SVG.

    Attributes:
        title: what is shown.
        below: what runs from left to right.
        path: its points as SVG writes them.
        ticks: where the largest and the smallest number are, and what they are.
        unshown: how many numbers are not finite and so have no point.
    """

    title: str
    below: str
    path: str
    ticks: tuple[tuple[float, str], ...]
    unshown: int = 0


def curves(certificate: Certificate | None) -> tuple[LogCurve, ...]:
    """Return the curves of a certificate: the convergence, and the spectrum if there is one."""
    if certificate is None or not certificate.misfits:
        return ()
    found = [_curve("misfit of the share, in units of rounding", "step", certificate.misfits)]
    if certificate.spectrum is not None:
        errors = certificate.spectrum.tolist()
        found.append(_curve("predicted error", "direction, from the best determined on", errors))
    return tuple(found)


def _curve(title: str, below: str, values: Sequence[float]) -> LogCurve:
    every = max(math.ceil(len(values) / MOST_POINTS), 1)
    kept = [(i, math.log10(v)) for i, v in enumerate(values) if 0 < v < math.inf]
    kept = [*kept[:-1:every], *kept[-1:]]
    unshown = sum(not 0 < v < math.inf for v in values)
    if not kept:
        return LogCurve(title, below, "", (), unshown)
    low, high = min(y for _, y in kept), max(y for _, y in kept)
    wide = high - low or 1.0
    points = " ".join(
        f"{FRAME.x(i, len(values)):.1f},{FRAME.y((y - low) / wide):.1f}" for i, y in kept
    )
    ticks = ((FRAME.y((high - low) / wide), written(10**high)), (FRAME.y(0.0), written(10**low)))
    return LogCurve(title, below, points, ticks, unshown)
