"""What the paper claims, and what the records say of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import compress
from statistics import fmean

from softleak.paper.experiment import NOTHING, Cell, Column, Experiment
from softleak.paper.input_tables import PSNR
from softleak.paper.reproduction import EXPERIMENTS
from softleak.paper.sweep import Record, Records, numbers


class Standing(Enum):
    """What the records say of a claim."""

    CONFIRMED = "confirmed"
    EXCEEDED = "exceeded"
    REFUTED = "refuted"
    OPEN = "not measured yet"


Judged = tuple[Standing, str]  # the standing, and the figure that it rests on
NOT_MEASURED: Judged = (Standing.OPEN, "")


@dataclass(frozen=True)
class Found:
    """What was measured of the cells that a claim is about."""

    values: Mapping[str, float]  # the measured value of each cell that was run
    cells: int  # the number of all cells that the claim is about

    def judged(self, one: Standing | None, every: Standing, figure: str) -> Judged:
        """Return the standing of a claim, with its figure and the number of cells.

        Args:
            one: what a single cell has shown already; None if it takes all cells to tell.
            every: what holds once every cell has been run.
            figure: the value that the claim is judged by.
        """
        count = len(self.values)
        if count == self.cells:
            return one or every, f"{figure} in {count} cells"
        return one or Standing.OPEN, f"so far {figure} in {count} of {self.cells} cells"


@dataclass(frozen=True)
class Means:
    """The means of measures, by cell."""

    records: Records  # what was measured so far

    def of(self, experiment: str, measure: str, *words: str) -> Found:
        """Return the means of one measure in the cells whose names hold all words."""
        cells = EXPERIMENTS[experiment].cells
        asked = [cell.name for cell in cells if all(word in cell.name for word in words)]
        held = {n: numbers(self.records.of(experiment, n), measure) for n in asked}
        return Found({n: fmean(values) for n, values in held.items() if values}, len(asked))

    def gaps(self, experiment: str, ours: str, other: str) -> Found:
        """Return by how many dB cells that end in ``ours`` exceed those that end in ``other``."""
        found, beside = self.of(experiment, PSNR, ours), self.of(experiment, PSNR, other).values
        pairs = {name: name.removesuffix(ours) + other for name in found.values}
        gaps = {a: found.values[a] - beside[b] for a, b in pairs.items() if b in beside}
        return Found(gaps, found.cells)

    def beyond(self, experiment: str, *words: str) -> Found:
        """Return by how many dB the cells whose names hold all words exceed the paper's PSNR."""
        found = self.of(experiment, PSNR, *words)
        paper = {c.name: c.paper[PSNR] for c in EXPERIMENTS[experiment].cells if PSNR in c.paper}
        gaps = {n: value - paper[n] for n, value in found.values.items() if n in paper}
        return Found(gaps, sum(all(word in name for word in words) for name in paper))


FACTS = (
    "Success is judged by the truth: the code compares the scalar it found with the true one and "
    "discards an answer that is off. Here every sample counts, and no attack sees the truth, "
    "except in the column GT, which is given the true label.",
    "Samples whose label was not recovered are redrawn until one is (Tables 3 and 4); here none.",
    "Noise is added to the one row of the head's gradient that the attack reads; the rows its "
    "ratios are taken from stay clean (Table 5). Here it is on everything sent; one row beside it.",
    "The size of the noise is its standard deviation, not its variance (Table 5).",
    "“DLG+Ours” starts from logits fitted to the true label, not to the recovered one (Table 3). "
    "Here it starts from the recovered label.",
    "“iDLG” is the true hard label (Table 3). Here its class is read from the gradient.",
    "PSNR is that of bytes made without clamping, so that values outside the range wrap around. "
    "Here pixels are clamped and not quantised.",
    "The column α = 2, β = 2 is α = 1, β = 2 in the code (Table 4). Here it is as printed.",
    "The swarm has 500 particles and 40 iterations, not 200 and 30; the stated bound of 70 ends at "
    "50 or 66.",
)  # fmt: skip


class Verdict(Enum):
    """How our value compares with the paper's, as both are written."""

    BETTER = "better"
    EQUAL = "equal"
    WORSE = "worse"
    NONE = ""  # there is nothing to compare


@dataclass(frozen=True)
class Entry:
    """One column of a row."""

    ours: str  # our value as text
    paper: str  # the paper's value as text
    verdict: Verdict  # which of the two is better


@dataclass(frozen=True)
class Row:
    """A cell as measured so far."""

    cell: str  # the name of the cell
    samples: int  # the number of samples that were measured
    entries: tuple[Entry, ...]  # the values, one per column
    note: str  # where the measurement has less than the paper's, such as fewer samples


LACKING = Entry(NOTHING, NOTHING, Verdict.NONE)


@dataclass(frozen=True)
class Table:
    """An experiment, or one measure of it, as measured so far."""

    title: str  # the heading of the table
    columns: tuple[str, ...]  # the headings of the columns
    rows: tuple[Row, ...]  # the rows, with one entry per column each


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


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and how it is judged."""

    section: str  # where the paper says it
    text: str  # the sentence, shortened
    judge: Callable[[Means], Judged]  # the function that judges it by the means of the records


def _least(experiment: str, measure: str, wanted: float) -> Callable[[Means], Judged]:
    """Return a judge that wants this success rate in every cell; 100 % in all exceeds the claim."""

    def judge(means: Means) -> Judged:
        found = means.of(experiment, measure)
        if not found.values:
            return NOT_MEASURED
        cell, low = min(found.values.items(), key=lambda item: item[1])
        high = Standing.EXCEEDED if low == 1 else Standing.CONFIRMED
        failed = Standing.REFUTED if low < wanted else None
        return found.judged(failed, high, f"lowest: {low:.1%} ({cell})")

    return judge


def _apart(
    experiment: str, ours: str, other: str, holds: Callable[[float], bool]
) -> Callable[[Means], Judged]:
    """Return a judge of the differences of PSNR between two kinds of cells."""

    def judge(means: Means) -> Judged:
        found = means.gaps(experiment, ours, other)
        if not found.values:
            return NOT_MEASURED
        gaps = found.values.values()
        failed = None if all(map(holds, gaps)) else Standing.REFUTED
        figure = f"{min(gaps):+.2f} to {max(gaps):+.2f} dB"
        return found.judged(failed, Standing.CONFIRMED, figure)

    return judge


def _as_good(means: Means) -> Judged:
    """Judge whether the PSNR of FCN-4 is above the paper's in every cell."""
    found = means.beyond("fcn")
    if not found.values:
        return NOT_MEASURED
    least = min(found.values.values())
    failed = None if least > 0 else Standing.REFUTED
    return found.judged(failed, Standing.EXCEEDED, f"{least:+.1f} dB at least")


def _matching_only(means: Means) -> Judged:
    """Judge the "only": computed inputs that are better than the best matched ones refute it."""
    found = means.beyond("table3", "exact inversion")
    if not found.values:
        return NOT_MEASURED
    least = min(found.values.values())
    every = Standing.REFUTED if least > 0 else Standing.CONFIRMED
    return found.judged(None, every, f"exact inversion {least:+.1f} dB at least")


def _idlg(means: Means) -> Judged:
    """Judge whether iDLG ever fails on one-hot labels."""
    found = means.of("table1", "idlg_exact", "one-hot")
    if not found.values:
        return NOT_MEASURED
    low = min(found.values.values())
    shown = Standing.CONFIRMED if low < 1 else None
    return found.judged(shown, Standing.REFUTED, f"lowest: {low:.1%}")


def _no_prior(means: Means) -> Judged:
    """Judge whether a family is needed: exact inversion gets none, so its labels refute that."""
    found = means.of("table3", "L1", "exact inversion")
    if not found.values:
        return NOT_MEASURED
    worst = max(found.values.values())
    every = Standing.REFUTED if worst < 1e-3 else Standing.CONFIRMED
    return found.judged(None, every, f"without it mean L1 {worst:.0e}")


def _noise(means: Means) -> Judged:
    """Judge whether noise of standard deviation 0.1 hides labels that 0.01 does not."""
    low, high = (means.of("table5", "head_close", level) for level in ("1e-02", "1e-01"))
    if not low.values or not high.values:
        return NOT_MEASURED
    least = [min(found.values.values()) for found in (low, high)]
    every = Standing.CONFIRMED if least[1] < 0.9 else Standing.REFUTED
    both = Found({**low.values, **high.values}, low.cells + high.cells)
    return both.judged(None, every, f"at 1e-2 {least[0]:.0%}, at 1e-1 {least[1]:.0%}")


CLAIMS = (
    Claim("§4.1", "above 95 % on three data sets (Table 1, head only)",
          _least("table1", "head_exact", 0.95)),
    Claim("§4.1", "above 95 % on trained and untrained networks (Table 2, head only)",
          _least("table2", "head_exact", 0.95)),
    Claim("§4.1", "the same, from the whole share", _least("table2", "whole_exact", 0.95)),
    Claim("App. B", "iDLG cannot guarantee 100 % on one-hot labels", _idlg),
    Claim("§3.4", "what is known of the label's distribution is a necessary condition", _no_prior),
    Claim("§4.2", "high-quality images of FCN-4, 51 and 67 dB", _as_good),
    Claim("§4.3", "inputs of a CNN can be approached by gradient matching only", _matching_only),
    Claim("§4.3", "recovered labels serve as well as known ones (to 1 dB)",
          _apart("table3", ", ours", ", GT", lambda gap: gap > -1)),
    Claim("§4.3", "one-hot labels are worse than known ones",
          _apart("table3", ", iDLG", ", GT", lambda gap: gap < 0)),
    Claim("§5.1", "the feature improves the image",
          _apart("table4", "α=0 β=1, ours", "α=1 β=0, ours", lambda gap: gap > 0)),
    Claim("§5.1", "feature and gradient of one layer together are worse than the feature",
          _apart("table4", "α=1 β=1, ours", "α=0 β=1, ours", lambda gap: gap < 0)),
    Claim("§5.2", "accuracy drops harshly at 1e-1 (noise on all, head only)", _noise),
)  # fmt: skip
