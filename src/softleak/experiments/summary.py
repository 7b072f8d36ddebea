"""Records become a table: ours beside the paper's, and which is better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import compress
from statistics import fmean

from softleak.experiments.experiment import NOTHING, Cell, Column, Experiment
from softleak.sweep import Record, Records


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


@dataclass(frozen=True)
class Table:
    """An experiment as measured so far."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def tabulated(experiment: Experiment, records: Records) -> Table:
    """What an experiment's records say, cell by cell; what has none is left out."""
    rows = [row for cell in experiment.cells if (row := _row(experiment, cell, records)).samples]
    filled = [any(entry.ours != NOTHING for entry in column) for column in zip(
        *(row.entries for row in rows), strict=True)]  # fmt: skip
    return Table(
        experiment.title,
        tuple(compress((column.title for column in experiment.columns), filled)),
        tuple(replace(row, entries=tuple(compress(row.entries, filled))) for row in rows),
    )


def _row(experiment: Experiment, cell: Cell, records: Records) -> Row:
    held = records.of(experiment.name, cell.name)
    known = records.provenance(experiment.name, cell.name) or {}
    wanted = cell.samples * experiment.paper_repeats
    fewer = f"{len(held)} samples of the paper's {wanted}" if len(held) < wanted else ""
    notes = [fewer, str(known.get("shortfall", ""))]
    entries = tuple(entry(column, cell, held) for column in experiment.columns)
    return Row(cell.name, len(held), entries, "; ".join(filter(None, notes)))


def entry(column: Column, cell: Cell, records: Sequence[Record]) -> Entry:
    """The mean of a measure beside the paper's."""
    values = [
        float(v) for r in records if isinstance(v := r.measures.get(column.measure), (int, float))
    ]
    ours, paper = fmean(values) if values else None, cell.paper.get(column.paper)
    written = column.unit.written(ours), column.unit.written(paper)
    if ours is None or paper is None:
        return Entry(*written, Verdict.NONE)
    if written[0] == written[1]:
        return Entry(*written, Verdict.EQUAL)
    better = (ours > paper) == column.higher
    return Entry(*written, Verdict.BETTER if better else Verdict.WORSE)
