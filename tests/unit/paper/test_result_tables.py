"""What the terminal shows."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from softleak.paper.reproduction import LACKING, Row, Table, results_table


def test_footnotes_are_counted_from_one():
    rows = tuple(
        Row(cell, 1, (LACKING,), note) for cell, note in (("a", ""), ("b", "few"), ("c", "few"))
    )
    console = Console(width=100, file=StringIO())
    console.print(results_table(Table("t", ("column",), rows)))
    text = console.file.getvalue()
    assert "[1] few" in text
    assert "[2]" not in text
