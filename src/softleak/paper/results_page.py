"""Lay out the paper's tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

from softleak._version import __version__
from softleak.core.errors import FileError
from softleak.io.atomic import write_text
from softleak.paper.claims import (
    CLAIMS,
    FACTS,
    Claim,
    Entry,
    Means,
    Standing,
    Table,
    Verdict,
    tabulated,
)
from softleak.paper.reproduction import EXPERIMENTS, Omission
from softleak.paper.sweep import Records
from softleak.present.page import fill

MARKS = {Verdict.BETTER: "▲", Verdict.EQUAL: "=", Verdict.WORSE: "▼", Verdict.NONE: ""}
BEGIN, END = "<!-- softleak reproduce: begin -->", "<!-- softleak reproduce: end -->"
LEGEND = "▲ better than the paper, = equal as written, ▼ worse; in brackets the paper's value."

SCORED = (
    "Every sample is counted. No attack sees the truth, except in the column GT, which is given "
    "the true label; elsewhere the truth is read afterwards, to score. L1 columns are means over "
    "the labels that were recovered, as in the paper; an input that was not found counts as the "
    "data set's mean image."
)


@dataclass(frozen=True)
class ResultsPage:
    """Everything that the records of a folder say."""

    tables: tuple[Table, ...]
    claims: tuple[tuple[Claim, Standing, str], ...]

    @classmethod
    def of(cls, records: Records) -> ResultsPage:
        """Return the tables that have rows, and every claim."""
        tables = (table for e in EXPERIMENTS.values() for table in tabulated(e, records))
        means = Means(records)
        claims = tuple((claim, *claim.judge(means)) for claim in CLAIMS)
        return cls(tuple(tables), claims)


def markdown(results: ResultsPage) -> str:
    """Return the results as Markdown."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: ResultsPage) -> Iterator[str]:
    yield f"By softleak {__version__}. {LEGEND}\n\n{SCORED}"
    for table in results.tables:
        yield f"\n### {table.title}\n"
        yield f"| cell | {' | '.join(table.columns)} | note |"
        yield "|---" * (len(table.columns) + 2) + "|"
        for row in table.rows:
            yield f"| {row.cell} | {' | '.join(map(written, row.entries))} | {row.note} |"
    yield "\n### The paper's claims\n\n| where | claim | here | figure |\n|---|---|---|---|"
    for claim, standing, figure in results.claims:
        yield f"| {claim.section} | {claim.text} | {standing.value} | {figure} |"
    yield "\n### Where the paper's text and its published code differ\n"
    yield from (f"- {fact}" for fact in FACTS)


def written(entry: Entry) -> str:
    """Return our value, the verdict, and the paper's value in brackets."""
    if entry.verdict is Verdict.NONE:
        return entry.ours
    return f"{entry.ours} {MARKS[entry.verdict]} ({entry.paper})"


def write_results(folder: Path, results: ResultsPage) -> None:
    """Write ``RESULTS.md`` and ``index.html``, each whole or not at all.

    Args:
        folder: where they go; figures that are there already are shown.
        results: the tables and claims.
    """
    write_text(folder / "RESULTS.md", f"# The paper's tables\n\n{markdown(results)}")
    page = fill(
        "results.html", results=results, facts=FACTS, pictures=_pictures(folder), legend=LEGEND,
        scored=SCORED, marks=MARKS,
    )  # fmt: skip
    write_text(folder / "index.html", page)


def _pictures(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("figure?.png"))


def splice(path: Path, results: ResultsPage) -> None:
    """Write the results between the two marks of a Markdown file."""
    before, after = around(path)
    write_text(path, f"{before}{BEGIN}\n{markdown(results)}{END}{after}")


def around(path: Path) -> tuple[str, str]:
    """Return what is before and after the two marks of a Markdown file."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise FileError(f"expected a Markdown file at {path}: {error}") from error
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise FileError(f"expected {BEGIN} and {END} in {path}, to put the results between them")
    return before, after


VERDICT_STYLES = {
    Verdict.BETTER: "green",
    Verdict.EQUAL: "cyan",
    Verdict.WORSE: "bold red",
    Verdict.NONE: "",
}


def results_table(results: Table) -> Group:
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
    table = RichTable(
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


def omission_table(omitted: Sequence[Omission]) -> RichTable:
    """Return a table of the cells that were not run, and what they need."""
    table = RichTable(title="Not run", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
    for column in ("cell", "needs, in --data or --weights"):
        table.add_column(column, overflow="fold")
    for omission in omitted:
        table.add_row(f"{omission.experiment}: {omission.cell}", omission.lacking)
    return table
