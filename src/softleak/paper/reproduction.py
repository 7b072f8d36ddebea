"""Run experiments from beginning to end: compute what is missing, and record all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from softleak.core.environment import code, versions
from softleak.core.errors import DataError, OptionError
from softleak.paper.experiment import Attack, Cell, Experiment, Size
from softleak.paper.leaderboard import LEADERBOARD
from softleak.paper.networks import SAMPLE_SEED, WEIGHT_SEED, Shelf
from softleak.paper.sweep import Engine, Piece, Record, Records, missing, sweep
from softleak.paper.tables import TABLES, MatchingCell

EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.name: experiment for experiment in (*TABLES, LEADERBOARD)
}


Key = tuple[str, str]  # the names of an experiment and of a cell


@dataclass(frozen=True)
class Laboratory:
    """A function that computes pieces, sent to every worker once, with all data and weights."""

    shelf: Shelf  # the data packs and weights, opened
    cells: Mapping[Key, Cell]  # the cells that pieces may come from
    # The attack of the cell that was computed last.
    prepared: dict[Key, Attack] = field(default_factory=dict, compare=False)

    @classmethod
    def stocked(cls, shelf: Shelf, cells: Mapping[Key, Cell]) -> Laboratory:
        """Return a laboratory for these cells, after opening their data and weights."""
        for cell in cells.values():
            shelf.images(cell.network.source)
            if cell.network.weights:
                shelf.tensors(cell.network.weights)
        return cls(shelf, cells)

    def __call__(self, piece: Piece) -> Sequence[Record]:
        """Return one record for each sample of a piece."""
        key = piece.experiment, piece.cell
        if key not in self.prepared:
            self.prepared.clear()  # pieces come cell by cell; one network at a time is enough
            self.prepared[key] = self.cells[key].prepare(self.shelf)
        measured = self.prepared[key](piece.samples, piece.repeat)
        return [
            Record(*key, piece.repeat, sample, measures)
            for sample, measures in zip(piece.samples, measured, strict=True)
        ]


Begin = Callable[[int], Callable[[Piece], None]]  # from the number of pieces to a listener


def reproduce(
    experiments: Sequence[Experiment], size: Size, shelf: Shelf, records: Records, engine: Engine,
    only: str = "", compiled: bool = False, begin: Begin = lambda _: lambda __: None,
) -> tuple[dict[Key, str], list[Piece]]:  # fmt: skip
    """Run every cell whose name contains ``only`` and whose files are there.

    What the records hold already is not computed again. ``compiled`` gradient matching is faster
    and rounds differently. ``begin`` is told the number of pieces, and returns a listener to them.

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
    laboratory = Laboratory.stocked(shelf, cells)
    lost = sweep(laboratory, pieces, records, engine, begin(len(pieces))) if pieces else []
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
