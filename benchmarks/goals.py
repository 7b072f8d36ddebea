"""What a part set out to reach, and whether it did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table


@dataclass(frozen=True)
class Goal:
    """A ratio with a bound: from below if ``at_least``, else from above."""

    what: str
    measured: float
    bound: float
    at_least: bool = True

    @property
    def met(self) -> bool:
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound


def ratio(value: float) -> str:
    """Two figures: a benchmark on a shared machine knows no more."""
    rounded = float(f"{value:.2g}")
    if rounded >= 1e6:
        return f"{rounded / 1e6:.2g}M×"
    return f"{rounded:,.0f}×" if rounded >= 10 else f"{rounded:.2g}×"


def goals_table(goals: Sequence[Goal]) -> Table:
    table = Table("goal", "wanted", "measured", "met", title="Goals")
    for goal in goals:
        sign = "≥" if goal.at_least else "≤"
        met = "[green]yes" if goal.met else "[red]no"
        table.add_row(goal.what, f"{sign} {ratio(goal.bound)}", ratio(goal.measured), met)
    return table
