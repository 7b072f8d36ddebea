"""The goals of the timed parts, and whether they are met."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Goal:
    """A measured ratio with a bound.

    Attributes:
        what: the name of the goal.
        measured: the measured ratio.
        bound: the ratio that is wanted.
        at_least: whether the bound is a lower one; otherwise it is an upper one.
    """

    what: str
    measured: float
    bound: float
    at_least: bool = True

    @property
    def met(self) -> bool:
        """Whether the goal is reached."""
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound


def ratio(value: float) -> str:
    """Return a ratio with two figures, because a shared machine measures no more."""
    rounded = float(f"{value:.2g}")
    if rounded >= 1e6:
        return f"{rounded / 1e6:.2g}M×"
    return f"{rounded:,.0f}×" if rounded >= 10 else f"{rounded:.2g}×"


def goals_table(goals: Sequence[Goal]) -> Table:
    """Return a table of all goals."""
    table = Table("goal", "wanted", "measured", "met", title="Goals")
    for goal in goals:
        sign = "≥" if goal.at_least else "≤"
        met = "[green]yes" if goal.met else "[red]no"
        table.add_row(goal.what, f"{sign} {ratio(goal.bound)}", ratio(goal.measured), met)
    return table


def run_alone(part: Callable[[Console], Sequence[Goal]]) -> None:
    """Run one part of the benchmarks in one thread, and print its goals."""
    torch.set_num_threads(1)
    console = Console()
    console.print(goals_table(part(console)))
