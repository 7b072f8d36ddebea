"""Run experiments from beginning to end, and say what their records show of tables and claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import compress
from pathlib import Path
from statistics import fmean

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

from softleak._version import __version__
from softleak.core.environment import code, versions
from softleak.core.errors import DataError, FileError, OptionError
from softleak.io.atomic import write_text
from softleak.paper.experiment import NOTHING, PAPER, Cell, Column, Experiment, Size
from softleak.paper.leaderboard import LEADERBOARD
from softleak.paper.networks import SAMPLE_SEED, WEIGHT_SEED, AttackedNetwork, Shelf
from softleak.paper.sweep import Engine, Piece, Record, Records, missing, numbers, sweep
from softleak.paper.tables import PSNR, TABLES, MatchingCell
from softleak.present.page import fill

EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.name: experiment for experiment in (*TABLES, LEADERBOARD)
}


Key = tuple[str, str]  # the names of an experiment and of a cell


@dataclass(frozen=True)
class Laboratory:
    """A function that computes pieces, sent to every worker once, with all data and weights."""

    shelf: Shelf  # the data packs and weights, opened
    cells: Mapping[Key, Cell]  # the cells that pieces may come from
    # The network of the cell that was computed last.
    attacked: dict[Key, AttackedNetwork] = field(default_factory=dict, compare=False)

    def __call__(self, piece: Piece) -> Sequence[Record]:
        """Return one record for each sample of a piece."""
        key = piece.experiment, piece.cell
        cell = self.cells[key]
        if key not in self.attacked:
            self.attacked.clear()  # pieces come cell by cell; one network at a time is enough
            self.attacked[key] = cell.attacked(self.shelf)
        measured = cell.measured_together(self.attacked[key], piece.samples, piece.repeat)
        return [
            Record(*key, piece.repeat, sample, measures)
            for sample, measures in zip(piece.samples, measured, strict=True)
        ]


Begin = Callable[[int], Callable[[Piece], None]]  # from the number of pieces to a listener


def reproduce(
    experiments: Sequence[Experiment], size: Size, shelf: Shelf, records: Records, engine: Engine,
    only: str = "", compiled: bool = False, begin: Begin = lambda _: lambda __: None,
) -> tuple[dict[Key, str], list[Piece]]:  # fmt: skip
    """Run every cell whose name contains ``only``, whose files are there and that is not recorded.

    Returns the missing files of the cells that need some, and the pieces whose workers died
    repeatedly. Raises ``OptionError`` if no cell has such a name, ``DataError`` if files are
    missing for all of them, ``MissingExtra`` if a measure needs a package that is not installed.
    """
    chosen = _chosen(experiments, only)
    if compiled:
        chosen = [
            (e, replace(cell, compiled=True) if isinstance(cell, MatchingCell) else cell)
            for e, cell in chosen
        ]
    runnable, omitted = _runnable(chosen, shelf)
    for column in {column for e, _ in runnable for column in e.columns}:
        column.check()
    for experiment, cell in runnable:
        records.declare(experiment.name, cell.name, provenance(cell, shelf))
    wanted = [piece for e, cell in runnable for piece in e.pieces(cell, size)]
    pieces = missing(wanted, records)
    unfinished = {(piece.experiment, piece.cell) for piece in pieces}
    cells = {k: cell for e, cell in runnable if (k := (e.name, cell.name)) in unfinished}
    for cell in cells.values():  # what is opened now travels with the shelf
        shelf.images(cell.network.source)
        if cell.network.weights:
            shelf.tensors(cell.network.weights)
    lost = (
        sweep(Laboratory(shelf, cells), pieces, records, engine, begin(len(pieces)))
        if pieces
        else []
    )
    for name in dict.fromkeys(e.name for e, _ in runnable):
        records.export(name)
    return omitted, lost


def _chosen(experiments: Sequence[Experiment], only: str) -> list[tuple[Experiment, Cell]]:
    """Return the cells whose names contain ``only``; raise ``OptionError`` if there is none."""
    cells = [(e, cell) for e in experiments for cell in e.cells]
    chosen = [(e, cell) for e, cell in cells if only in cell.name]
    if cells and not chosen:
        some = "; ".join(cell.name for _, cell in cells[:4])
        raise OptionError(
            f"no cell's name contains {only!r}. There are {len(cells)}, the first: {some}"
        )
    return chosen


def _runnable(
    cells: Sequence[tuple[Experiment, Cell]], shelf: Shelf
) -> tuple[list[tuple[Experiment, Cell]], dict[Key, str]]:
    """Return the cells whose files are there, and what the others lack; raise if all lack some."""
    lacking = {(e.name, cell.name): cell.network.lacking(shelf) for e, cell in cells}
    runnable = [(e, cell) for e, cell in cells if not lacking[e.name, cell.name]]
    omitted = {key: files for key, files in lacking.items() if files}
    if omitted and not runnable:
        files = dict.fromkeys(name for each in omitted.values() for name in each.split(", "))
        raise DataError(
            f"nothing can be run: the cells asked for need {', '.join(files)}. Give the folders "
            "that hold them by --data and --weights"
        )
    return runnable, omitted


def provenance(cell: Cell, shelf: Shelf) -> dict[str, object]:
    """Return what the records of a cell depend on, besides the numbers of samples."""
    network = cell.network
    compiled = isinstance(cell, MatchingCell) and cell.compiled
    return {
        "code": code(),
        "versions": dict(versions()),
        "seeds": {"samples": SAMPLE_SEED, "weights": WEIGHT_SEED},
        "files": shelf.hashes([network.source.file, network.weights]),
        "shortfall": shelf.shortfall(network.source),
        **({"compiled": True} if compiled else {}),
    }


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
    """Return an experiment's tables, one per measure if its cells are laid out in two ways."""
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
    """Return the mean of a measure beside the value that the paper has for the cell."""
    values = numbers(records, column.measure)
    ours, paper = fmean(values) if values else None, cell.paper.get(column.paper)
    written = column.unit.written(ours), column.unit.written(paper)
    if ours is None or paper is None:
        return Entry(*written, Verdict.NONE)
    if written[0] == written[1]:
        return Entry(*written, Verdict.EQUAL)
    better = (ours > paper) == column.higher
    return Entry(*written, Verdict.BETTER if better else Verdict.WORSE)


class Standing(Enum):
    """What the records say of a claim."""

    CONFIRMED = "confirmed"
    EXCEEDED = "exceeded"
    REFUTED = "refuted"
    OPEN = "not measured yet"


@dataclass(frozen=True)
class Found:
    """What was measured of the cells that a claim is about."""

    values: Mapping[str, float]  # the measured value of each cell that was run
    cells: int  # the number of all cells that the claim is about


def means(records: Records, experiment: str, measure: str, *words: str) -> Found:
    """Return the means of a measure, of the cells whose names hold all words."""
    cells = EXPERIMENTS[experiment].cells
    asked = [cell.name for cell in cells if all(word in cell.name for word in words)]
    held = {n: numbers(records.of(experiment, n), measure) for n in asked}
    return Found({n: fmean(values) for n, values in held.items() if values}, len(asked))


def gaps(records: Records, experiment: str, ours: str, other: str) -> Found:
    """Return by how many dB cells that end in ``ours`` exceed those that end in ``other``."""
    found = means(records, experiment, PSNR, ours)
    beside = means(records, experiment, PSNR, other).values
    pairs = {name: name.removesuffix(ours) + other for name in found.values}
    return Found(
        {a: found.values[a] - beside[b] for a, b in pairs.items() if b in beside}, found.cells
    )


def beyond(records: Records, experiment: str, *words: str) -> Found:
    """Return by how many dB the cells whose names hold all words exceed the paper's PSNR."""
    found = means(records, experiment, PSNR, *words)
    paper = {c.name: c.paper[PSNR] for c in EXPERIMENTS[experiment].cells if PSNR in c.paper}
    over = {n: value - paper[n] for n, value in found.values.items() if n in paper}
    return Found(over, sum(all(word in name for word in words) for name in paper))


# What a single cell has shown already, or None if it takes all cells to tell; what holds once every
# cell has been run; the figure that the claim is judged by.
Weighed = tuple[Standing | None, Standing, str]
Values = Mapping[str, float]  # by cell


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and how it is judged."""

    section: str  # where the paper says it
    text: str  # the sentence, shortened
    find: Callable[[Records], Found]  # returns what the sentence is about
    weigh: Callable[[Values], Weighed]  # judges it by what was measured so far, if anything was

    def judge(self, records: Records) -> tuple[Standing, str]:
        """Return the standing of the claim, with its figure and the number of cells."""
        found = self.find(records)
        if not found.values:
            return Standing.OPEN, ""
        one, every, figure = self.weigh(found.values)
        count = len(found.values)
        if count == found.cells:
            return one or every, f"{figure} in {count} cells"
        return one or Standing.OPEN, f"so far {figure} in {count} of {found.cells} cells"


def _at_least_95(rates: Values) -> Weighed:
    """Want this success rate in every cell; 100 % in all exceeds the claim."""
    cell, low = min(rates.items(), key=lambda item: item[1])
    high = Standing.EXCEEDED if low == 1 else Standing.CONFIRMED
    return Standing.REFUTED if low < 0.95 else None, high, f"lowest: {low:.1%} ({cell})"


def _every(holds: Callable[[float], bool]) -> Callable[[Values], Weighed]:
    """Return a judge that wants a difference of PSNR like this in every cell."""

    def weigh(gaps: Values) -> Weighed:
        figure = f"{min(gaps.values()):+.2f} to {max(gaps.values()):+.2f} dB"
        failed = None if all(map(holds, gaps.values())) else Standing.REFUTED
        return failed, Standing.CONFIRMED, figure

    return weigh


def _as_good(gaps: Values) -> Weighed:
    """Judge whether the PSNR of FCN-4 is above the paper's in every cell."""
    least = min(gaps.values())
    failed = None if least > 0 else Standing.REFUTED
    return failed, Standing.EXCEEDED, f"{least:+.1f} dB at least"


def _matching_only(gaps: Values) -> Weighed:
    """Judge the "only": computed inputs that are better than the best matched ones refute it."""
    least = min(gaps.values())
    every = Standing.REFUTED if least > 0 else Standing.CONFIRMED
    return None, every, f"exact inversion {least:+.1f} dB at least"


def _idlg(rates: Values) -> Weighed:
    """Judge whether iDLG ever fails on one-hot labels."""
    low = min(rates.values())
    return Standing.CONFIRMED if low < 1 else None, Standing.REFUTED, f"lowest: {low:.1%}"


def _no_prior(errors: Values) -> Weighed:
    """Judge whether a family is needed: exact inversion gets none, so its labels refute that."""
    worst = max(errors.values())
    every = Standing.REFUTED if worst < 1e-3 else Standing.CONFIRMED
    return None, every, f"without it mean L1 {worst:.0e}"


NOISE_LEVELS = ("1e-02", "1e-01")


def _under_noise(records: Records) -> Found:
    """Return the rates at both levels of noise; none unless there are some at each."""
    both = [means(records, "table5", "head_close", level) for level in NOISE_LEVELS]
    values = {name: rate for found in both for name, rate in found.values.items()}
    return Found(values if all(f.values for f in both) else {}, sum(f.cells for f in both))


def _noise(rates: Values) -> Weighed:
    """Judge whether noise of standard deviation 0.1 hides labels that 0.01 does not."""
    low, high = (
        min(rate for name, rate in rates.items() if level in name) for level in NOISE_LEVELS
    )
    every = Standing.CONFIRMED if high < 0.9 else Standing.REFUTED
    return None, every, f"at 1e-2 {low:.0%}, at 1e-1 {high:.0%}"


CLAIMS = (
    Claim("§4.1", "above 95 % on three data sets (Table 1, head only)",
          lambda held: means(held, "table1", "head_exact"), _at_least_95),
    Claim("§4.1", "above 95 % on trained and untrained networks (Table 2, head only)",
          lambda held: means(held, "table2", "head_exact"), _at_least_95),
    Claim("§4.1", "the same, from the whole share",
          lambda held: means(held, "table2", "whole_exact"), _at_least_95),
    Claim("App. B", "iDLG cannot guarantee 100 % on one-hot labels",
          lambda held: means(held, "table1", "idlg_exact", "one-hot"), _idlg),
    Claim("§3.4", "what is known of the label's distribution is a necessary condition",
          lambda held: means(held, "table3", "L1", "exact inversion"), _no_prior),
    Claim("§4.2", "high-quality images of FCN-4, 51 and 67 dB",
          lambda held: beyond(held, "fcn"), _as_good),
    Claim("§4.3", "inputs of a CNN can be approached by gradient matching only",
          lambda held: beyond(held, "table3", "exact inversion"), _matching_only),
    Claim("§4.3", "recovered labels serve as well as known ones (to 1 dB)",
          lambda held: gaps(held, "table3", ", ours", ", GT"), _every(lambda gap: gap > -1)),
    Claim("§4.3", "one-hot labels are worse than known ones",
          lambda held: gaps(held, "table3", ", iDLG", ", GT"), _every(lambda gap: gap < 0)),
    Claim("§5.1", "the feature improves the image",
          lambda held: gaps(held, "table4", "α=0 β=1, ours", "α=1 β=0, ours"),
          _every(lambda gap: gap > 0)),
    Claim("§5.1", "feature and gradient of one layer together are worse than the feature",
          lambda held: gaps(held, "table4", "α=1 β=1, ours", "α=0 β=1, ours"),
          _every(lambda gap: gap < 0)),
    Claim("§5.2", "accuracy drops harshly at 1e-1 (noise on all, head only)",
          _under_noise, _noise),
)  # fmt: skip


FACTS = PAPER["facts"]  # where the paper's text and its published code differ
STYLES = {Verdict.BETTER: "green", Verdict.EQUAL: "cyan", Verdict.WORSE: "bold red"}
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
        tables = (table for e in EXPERIMENTS.values() for table in tabulated(e, records))
        claims = tuple((claim, *claim.judge(records)) for claim in CLAIMS)
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
    """Write ``RESULTS.md`` and ``index.html``, which shows the figures that are in the folder."""
    write_text(folder / "RESULTS.md", f"# The paper's tables\n\n{markdown(results)}")
    pictures = sorted(path.name for path in folder.glob("figure?.png"))
    page = fill(
        "results.html", results=results, facts=FACTS, pictures=pictures, legend=LEGEND,
        scored=SCORED, marks=MARKS,
    )  # fmt: skip
    write_text(folder / "index.html", page)


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


def results_table(results: Table) -> Group:
    """Return a table of our values where the paper has some, with the paper's in brackets."""
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
            Text(written(entry), style=STYLES.get(entry.verdict, ""))
            for entry in compress(row.entries, shown)
        ]
        table.add_row(row.cell, *entries, Text(notes.get(row.note, "")))
    return Group(table, Text("\n".join(caption)))
