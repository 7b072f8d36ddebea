"""This module lays out the paper's tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from softleak.experiments import Omission, Verdict
from softleak.experiments import Table as Results
from softleak.report.results_page import LEGEND, written

VERDICT_STYLES = {
    Verdict.BETTER: "green",
    Verdict.EQUAL: "cyan",
    Verdict.WORSE: "bold red",
    Verdict.NONE: "",
}


def results_table(results: Results) -> Group:
    """Return a table of the paper with our values, and the paper's in brackets.

    Colours say which of the two is better. The page has every column; here there is room for those
    that the paper has, too. Notes stand below, where the table's width does not cut them.
    """
    compared = [
        any(entry.verdict is not Verdict.NONE for entry in column)
        for column in zip(*(row.entries for row in results.rows), strict=True)
    ]
    shown = compared if any(compared) else [True] * len(compared)
    said = dict.fromkeys(row.note for row in results.rows if row.note)
    notes = {note: f"[{i}]" for i, note in enumerate(said, 1)}
    caption = [LEGEND, *(f"{mark} {note}" for note, mark in notes.items())]
    table = Table(
        title=results.title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0),
        pad_edge=False,
    )  # fmt: skip
    table.add_column("cell", overflow="fold")
    for column in compress(results.columns, shown):
        table.add_column(column, justify="right")
    table.add_column("note", style="dim", no_wrap=True)
    for row in results.rows:
        entries = [
            Text(written(entry), style=VERDICT_STYLES[entry.verdict])
            for entry in compress(row.entries, shown)
        ]
        table.add_row(row.cell, *entries, Text(notes.get(row.note, "")))
    return Group(table, Text("\n".join(caption)))


def omission_table(omitted: Sequence[Omission]) -> Table:
    """Return a table of the cells that were not run, and what they need."""
    table = Table(title="Not run", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
    for column in ("cell", "needs, in --data or --weights"):
        table.add_column(column, overflow="fold")
    for omission in omitted:
        table.add_row(f"{omission.experiment}: {omission.cell}", omission.lacking)
    return table
