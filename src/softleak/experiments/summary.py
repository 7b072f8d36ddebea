"""Records become a table that shows our values beside the paper's, and which are better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import compress
from statistics import fmean

from softleak.experiments.experiment import NOTHING, Cell, Column, Experiment
from softleak.sweep import Record, Records, numbers


class Verdict(Enum):
    """How our value compares with the paper's, as both are written."""

    BETTER = "better"
    EQUAL = "equal"
    WORSE = "worse"
    NONE = ""  # there is nothing to compare


@dataclass(frozen=True)
class Entry:
    """This is one column of a row.

    Attributes:
        ours: our value as text.
        paper: the paper's value as text.
        verdict: which of the two is better.
    """

    ours: str
    paper: str
    verdict: Verdict


@dataclass(frozen=True)
class Row:
    """This is a cell as measured so far.

    Attributes:
        cell: the name of the cell.
        samples: the number of samples that were measured.
        entries: the values, one per column.
        note: where the measurement has less than the paper's, such as fewer samples.
    """

    cell: str
    samples: int
    entries: tuple[Entry, ...]
    note: str


LACKING = Entry(NOTHING, NOTHING, Verdict.NONE)


@dataclass(frozen=True)
class Table:
    """This is an experiment, or one measure of it, as measured so far.

    Attributes:
        title: the heading of the table.
        columns: the headings of the columns.
        rows: the rows, with one entry per column each.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def tabulated(experiment: Experiment, records: Records) -> tuple[Table, ...]:
    """Return the tables of an experiment, without the cells and measures that have no record.

    Cells are rows and measures are columns. If the experiment lays its cells out in two dimensions,
    there is one table per measure instead.

    Args:
        experiment: the experiment.
        records: what was measured so far.
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
    """Return a table without the columns and rows in which nothing was measured."""
    measured = [[entry.ours != NOTHING for entry in row.entries] for row in rows]
    columns = [any(column) for column in zip(*measured, strict=True)]
    kept = compress(rows, map(any, measured))
    return Table(
        title,
        tuple(compress(titles, columns)),
        tuple(replace(row, entries=tuple(compress(row.entries, columns))) for row in kept),
    )


def _grid(across: Mapping[str, str], rows: Mapping[str, Row], column: int) -> list[Row]:
    """Return the rows of one measure: beginnings of names go down, their endings go across."""
    placed = [
        {name.removesuffix(end): row for name, row in rows.items() if name.endswith(end)}
        for end in across.values()
    ]
    names = dict.fromkeys(name for each in placed for name in each)
    grid = []
    for name in names:
        if any(other.startswith(f"{name}, ") for other in names):
            continue  # it is shown in the rows of the other names
        held = [_holding(name, each) for each in placed]
        entries = tuple(row.entries[column] if row else LACKING for row in held)
        there = [row for row in held if row]
        notes = dict.fromkeys(row.note for row in there if row.note)
        grid.append(Row(name, min(row.samples for row in there), entries, "; ".join(notes)))
    return grid


def _holding(name: str, rows: Mapping[str, Row]) -> Row | None:
    """Return the row of this name, or the row of a beginning of it, which several names share."""
    found = (row for begun, row in rows.items() if f"{name}, ".startswith(f"{begun}, "))
    return next(found, None)


def _row(experiment: Experiment, cell: Cell, records: Records) -> Row:
    """Return the row of a cell, with a note on what it has less than the paper."""
    held = records.of(experiment.name, cell.name)
    known = records.provenance(experiment.name, cell.name) or {}
    wanted = cell.samples * experiment.paper_repeats
    samples = "1 sample" if len(held) == 1 else f"{len(held)} samples"
    fewer = f"{samples} of the paper's {wanted}" if cell.paper and len(held) < wanted else ""
    notes = [fewer, str(known.get("shortfall", ""))]
    entries = tuple(entry(column, cell, held) for column in experiment.columns)
    return Row(cell.name, len(held), entries, "; ".join(filter(None, notes)))


def entry(column: Column, cell: Cell, records: Sequence[Record]) -> Entry:
    """Return the mean of a measure beside the paper's value.

    Args:
        column: the measure, and the name of the paper's value.
        cell: the cell that holds the paper's value.
        records: what was measured of the cell.
    """
    values = numbers(records, column.measure)
    ours, paper = fmean(values) if values else None, cell.paper.get(column.paper)
    written = column.unit.written(ours), column.unit.written(paper)
    if ours is None or paper is None:
        return Entry(*written, Verdict.NONE)
    if written[0] == written[1]:
        return Entry(*written, Verdict.EQUAL)
    better = (ours > paper) == column.higher
    return Entry(*written, Verdict.BETTER if better else Verdict.WORSE)
