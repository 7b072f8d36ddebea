"""Write docs/results/losses.md."""

from pathlib import Path


def page(rows: Path) -> None:
    """x"""
