"""Curves of leakage against a defence's setting, ready to be drawn as SVG."""

from __future__ import annotations

import math
from dataclasses import dataclass

from softleak.audit.rates import Leak, Rate, Response
from softleak.audit.words import written

WIDTH, HEIGHT = 320, 170
LEFT, RIGHT, TOP, BOTTOM = 40, 12, 14, 34
SHOWN = (Leak.LABEL, Leak.CLASS, Leak.INPUT)


@dataclass(frozen=True)
class Dot:
    """One rate: where it is, and its interval."""

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """One kind of leak over all settings."""

    leak: Leak
    dots: tuple[Dot, ...]

    @property
    def path(self) -> str:
        """Its points, as SVG writes them."""
        return " ".join(f"{dot.x:.1f},{dot.y:.1f}" for dot in self.dots)


@dataclass(frozen=True)
class Cell:
    """What the table says of one attack: from where on it failed, or that it did not fail."""

    words: str
    stopped: bool


@dataclass(frozen=True)
class Chart:
    """One defence: its lines, the labels of its axis, and its row of the table."""

    response: Response
    lines: tuple[Line, ...]
    ticks: tuple[tuple[float, str], ...]
    cells: tuple[Cell, ...]

    @property
    def drawn(self) -> bool:
        """Whether there is more than one setting to draw."""
        return len(self.response.points) > 1


def chart(response: Response) -> Chart:
    """Lay out one defence, weak settings on the left."""
    count = len(response.points)
    placed = [(_x(i, count), point) for i, point in enumerate(response.points)]
    lines = []
    for leak in SHOWN:
        dots = [_dot(x, point.rates[leak]) for x, point in placed if leak in point.rates]
        lines += [Line(leak, tuple(dots))] if dots else []
    ticks = [(x, written(point.setting)) for x, point in placed]
    every = max(math.ceil(count / 4), 1)
    cells = tuple(_cell(response, leak) for leak in SHOWN)
    return Chart(response, tuple(lines), tuple(ticks[::every]), cells)


def _cell(response: Response, leak: Leak) -> Cell:
    rates = [point.rates[leak] for point in response.points if leak in point.rates]
    if not rates:
        return Cell("not tried", False)
    last = rates[-1]
    if leak not in response.stops:
        return Cell(f"still succeeds, {last.hits} of {last.trials}", False)
    start = f" from {written(response.stops[leak])} {_stronger(response)}" if response.unit else ""
    return Cell(f"did not succeed{start}, 0 of {last.trials}", True)


def _stronger(response: Response) -> str:
    """Which way a defence grows: more noise protects more, and so does a smaller norm."""
    weakest, strongest = response.points[0].setting, response.points[-1].setting
    return "up" if strongest >= weakest else "down"


def _dot(x: float, rate: Rate) -> Dot:
    low, high = rate.interval
    return Dot(x, _y(rate.value), _y(low), _y(high))


def _x(index: int, count: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (index / (count - 1) if count > 1 else 0.5)


def _y(rate: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * rate
