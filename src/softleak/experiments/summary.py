"""Records become a table: ours beside the paper's, and which is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import compress
from statistics import fmean

from softleak.experiments.experiment import NOTHING, Cell, Column, Experiment
from softleak.sweep import Record, Records, numbers


class Verdict(Enum):
    """Ours beside the paper's, as both are written."""

    BETTER = "better"
    EQUAL = "equal"
    WORSE = "worse"
    NONE = ""  # nothing to compare


@dataclass(frozen=True)
class Entry:
    """One column of a row."""

    ours: str
    paper: str
    verdict: Verdict


@dataclass(frozen=True)
class Row:
    """A cell as measured so far."""

    cell: str
    samples: int
    entries: tuple[Entry, ...]
    note: str  # in what it falls short of the paper's setting


LACKING = Entry(NOTHING, NOTHING, Verdict.NONE)


@dataclass(frozen=True)
class Table:
    """An experiment, or one measure of it, so far."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def tabulated(experiment: Experiment, records: Records) -> tuple[Table, ...]:
    """What an experiment's records say; cells and measures that have none are left out.

    Cells are rows, their measures columns; or, if the experiment lays its cells out in two
    dimensions, there is a table for each measure.
    """
    rows = {
        cell.name: row
        for cell in experiment.cells
        if (row := _row(experiment, cell, records)).samples
    }
    if not experiment.across:
        titles = [column.title for column in experiment.columns]
        tables = [_filled(experiment.title, titles, list(rows.values()))]
    else:
        tables = [
            _filled(f"{experiment.title}: {column.title}", list(experiment.across), grid)
            for i, column in enumerate(experiment.columns)
            if (grid := _grid(experiment.across, rows, i))
        ]
    return tuple(table for table in tables if table.rows)


def _filled(title: str, titles: Sequence[str], rows: Sequence[Row]) -> Table:
    """A table without the columns and rows in which nothing was measured."""
    measured = [[entry.ours != NOTHING for entry in row.entries] for row in rows]
    columns = [any(column) for column in zip(*measured, strict=True)]
    kept = compress(rows, map(any, measured))
    return Table(
        title,
        tuple(compress(titles, columns)),
        tuple(replace(row, entries=tuple(compress(row.entries, columns))) for row in kept),
    )


def _grid(across: Mapping[str, str], rows: Mapping[str, Row], column: int) -> list[Row]:
    """One measure of all cells: what their names begin with down, what they end with across."""
    placed = [
        {name.removesuffix(end): row for name, row in rows.items() if name.endswith(end)}
        for end in across.values()
    ]
    names = dict.fromkeys(name for each in placed for name in each)
    grid = []
    for name in names:
        if any(other.startswith(f"{name}, ") for other in names):
            continue  # it stands in the rows of the others
        held = [_holding(name, each) for each in placed]
        entries = tuple(row.entries[column] if row else LACKING for row in held)
        there = [row for row in held if row]
        notes = dict.fromkeys(row.note for row in there if row.note)
        grid.append(Row(name, min(row.samples for row in there), entries, "; ".join(notes)))
    return grid


def _holding(name: str, rows: Mapping[str, Row]) -> Row | None:
    """The row of this name, or of a beginning of it: a cell that is the same for several."""
    found = (row for begun, row in rows.items() if f"{name}, ".startswith(f"{begun}, "))
    return next(found, None)


def _row(experiment: Experiment, cell: Cell, records: Records) -> Row:
    held = records.of(experiment.name, cell.name)
    known = records.provenance(experiment.name, cell.name) or {}
    wanted = cell.samples * experiment.paper_repeats
    samples = "1 sample" if len(held) == 1 else f"{len(held)} samples"
    fewer = f"{samples} of the paper's {wanted}" if cell.paper and len(held) < wanted else ""
    notes = [fewer, str(known.get("shortfall", ""))]
    entries = tuple(entry(column, cell, held) for column in experiment.columns)
    return Row(cell.name, len(held), entries, "; ".join(filter(None, notes)))


def entry(column: Column, cell: Cell, records: Sequence[Record]) -> Entry:
    """The mean of a measure beside the paper's."""
    values = numbers(records, column.measure)
    ours, paper = fmean(values) if values else None, cell.paper.get(column.paper)
    written = column.unit.written(ours), column.unit.written(paper)
    if ours is None or paper is None:
        return Entry(*written, Verdict.NONE)
    if written[0] == written[1]:
        return Entry(*written, Verdict.EQUAL)
    better = (ours > paper) == column.higher
    return Entry(*written, Verdict.BETTER if better else Verdict.WORSE)
