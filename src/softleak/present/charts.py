"""Lay out how Gauss–Newton went: misfits by step, and errors by direction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from softleak.audit.leaks import Leak
from softleak.audit.rates import Rate, Response, Utility
from softleak.matching.reconstruction import Certificate
from softleak.present.words import written

MOST_TICKS = 4  # settings written below a chart; more would overlap


@dataclass(frozen=True)
class ChartFrame:
    """The size of a chart and its margins, in the units of its SVG."""

    width: int = 320
    height: int = 170
    left: int = 40
    right: int = 12
    top: int = 14
    bottom: int = 34

    def x(self, index: int, count: int) -> float:
        """Return where setting ``index`` of ``count`` is, from left to right."""
        along = index / (count - 1) if count > 1 else 0.5
        return self.left + (self.width - self.left - self.right) * along

    def y(self, rate: float) -> float:
        """Return where a rate from 0 to 1 is; SVG counts downwards."""
        return self.height - self.bottom - (self.height - self.top - self.bottom) * rate


FRAME = ChartFrame()


@dataclass(frozen=True)
class ChartDot:
    """One rate: where it is drawn, and where its interval begins and ends."""

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True)
class ChartLine:
    """One kind of leak over all settings."""

    leak: Leak
    dots: tuple[ChartDot, ...]

    @property
    def path(self) -> str:
        """Return its points as SVG writes them."""
        return " ".join(f"{dot.x:.1f},{dot.y:.1f}" for dot in self.dots)


@dataclass(frozen=True)
class ChartCell:
    """What the table says of one attack: from which setting on it failed, if it did.

    An attack whose best label is still right has not been ``stopped``, though it claims nothing.
    """

    words: str
    stopped: bool


@dataclass(frozen=True)
class Chart:
    """One defence: its lines, the labels of its axis, and its row of the table."""

    response: Response
    lines: tuple[ChartLine, ...]
    ticks: tuple[tuple[float, str], ...]
    cells: tuple[ChartCell, ...]

    @property
    def drawn(self) -> bool:
        """Return whether there is more than one setting to draw."""
        return len(self.response.points) > 1


def chart(response: Response) -> Chart:
    """Lay out one defence, weak settings on the left.

    Args:
        response: how often each attack succeeded at each setting of the defence.
    """
    count = len(response.points)
    placed = [(FRAME.x(i, count), point) for i, point in enumerate(response.points)]
    lines = []
    for leak in charted():
        dots = [_dot(x, point.rates[leak]) for x, point in placed if leak in point.rates]
        lines += [ChartLine(leak, tuple(dots))] if dots else []
    ticks = [(x, written(point.setting)) for x, point in placed]
    every = max(math.ceil(count / MOST_TICKS), 1)
    cells = tuple(_cell(response, leak) for leak in charted())
    return Chart(response, tuple(lines), tuple(ticks[::every]), cells)


def charted() -> list[Leak]:
    """Return the leaks that defences are tried against, in the order of the table."""
    return [leak for leak in Leak if leak.defended]


def _cell(response: Response, leak: Leak) -> ChartCell:
    rates = [point.rates[leak] for point in response.points if leak in point.rates]
    if not rates:
        return ChartCell("not tried", False)
    last = rates[-1]
    if leak not in response.stops:
        words = f"still succeeds, {last.hits} of {last.trials}{_unclaimed(response, leak)}"
        return ChartCell(f"{words}{_left(response.points[-1].utility)}", False)
    start = f" from {written(response.stops[leak])} {_stronger(response)}" if response.unit else ""
    unclaimed = _unclaimed(response, leak)
    words = f"did not succeed{start}, 0 of {last.trials}{unclaimed}"
    return ChartCell(f"{words}{_left(response.left.get(leak))}", not unclaimed)


def _unclaimed(response: Response, leak: Leak) -> str:
    """Return how many labels are right though nobody claims them, as it continues a cell."""
    if leak is not Leak.LABEL or not response.unclaimed:
        return ""
    if leak not in response.stops:
        return f", and {response.unclaimed} more right though not claimed"
    most = "up to " if len(response.points) > 1 else ""
    return f", but {most}{response.unclaimed} right though not claimed"


def _left(utility: Utility | None) -> str:
    """Return what a defence leaves of the update, as it continues a cell of the table."""
    return "" if utility is None else f"; {utility.words}"


def _stronger(response: Response) -> str:
    """Return which way a defence grows: more noise protects more, and so does a smaller norm."""
    weakest, strongest = response.points[0].setting, response.points[-1].setting
    return "up" if strongest >= weakest else "down"


def _dot(x: float, rate: Rate) -> ChartDot:
    low, high = rate.interval
    return ChartDot(x, FRAME.y(rate.value), FRAME.y(low), FRAME.y(high))


MOST_POINTS = 120  # points of a curve; more would not be seen


@dataclass(frozen=True)
class LogCurve:
    """A curve of positive numbers on a logarithmic axis, ready to be drawn as SVG.

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
