"""Run all timed parts, one after the other: `python -m benchmarks`."""

from __future__ import annotations

import torch
from rich.console import Console

from benchmarks import batch_speed, inversion, labels, matching
from benchmarks.goals import Goal, goals_table

PARTS = (labels.run, inversion.run, matching.run, batch_speed.run)


def main() -> None:
    """Time every part, and print which goals are met."""
    torch.set_num_threads(1)
    console = Console()
    goals: list[Goal] = []
    for part in PARTS:
        goals += part(console)
    console.print(goals_table(goals))


if __name__ == "__main__":
    main()
