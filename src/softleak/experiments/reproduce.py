"""Experiments from beginning to end: what is missing is computed, and all of it recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from softleak.environment import code, versions
from softleak.errors import DataError, OptionError
from softleak.experiments.experiment import Cell, Experiment, Size
from softleak.experiments.laboratory import Laboratory
from softleak.experiments.matching import MatchingCell
from softleak.experiments.networks import INIT_SEED
from softleak.experiments.shelf import Shelf
from softleak.experiments.target import SEED
from softleak.sweep import Engine, Piece, Records, sweep
from softleak.sweep.run import missing

FEW = 4  # names in a message
Begin = Callable[[int], Callable[[Piece], None]]  # told how many pieces there are


@dataclass(frozen=True)
class Omission:
    """A cell that was not run, and the files it would need."""

    experiment: str
    cell: str
    lacking: str


@dataclass(frozen=True)
class Outcome:
    """What did not happen: cells that lack files, pieces whose workers died again and again."""

    omitted: tuple[Omission, ...]
    lost: tuple[Piece, ...]


def reproduce(
    experiments: Sequence[Experiment],
    size: Size,
    shelf: Shelf,
    records: Records,
    engine: Engine,
    only: str = "",
    compiled: bool = False,
    begin: Begin = lambda _: lambda __: None,
) -> Outcome:
    """Run every cell whose name contains ``only`` and whose files are at hand.

    That there is no such cell, or that something they need is not installed, is said at once.
    """
    chosen = [
        (e, replace(cell, compiled=compiled) if isinstance(cell, MatchingCell) else cell)
        for e, cell in _chosen(experiments, only)
    ]
    omitted = tuple(_omitted(chosen, shelf))
    left_out = {(omission.experiment, omission.cell) for omission in omitted}
    runnable = [(e, cell) for e, cell in chosen if (e.name, cell.name) not in left_out]
    if omitted and not runnable:
        lacking = dict.fromkeys(name for each in omitted for name in each.lacking.split(", "))
        raise DataError(
            f"nothing can be run: the cells asked for need {', '.join(lacking)}. Give the folders "
            "that hold them by --data and --weights"
        )
    for column in {column for e, _ in runnable for column in e.columns}:
        column.check()
    for experiment, cell in runnable:
        records.declare(experiment.name, cell.name, provenance(cell, shelf))
    wanted = [piece for e, cell in runnable for piece in e.pieces(cell, size)]
    pieces = missing(wanted, records)
    unfinished = {(piece.experiment, piece.cell) for piece in pieces}
    cells = {(e.name, cell.name): cell for e, cell in runnable}
    laboratory = Laboratory.stocked(
        shelf, {key: cell for key, cell in cells.items() if key in unfinished}
    )
    lost = sweep(laboratory, pieces, records, engine, begin(len(pieces))) if pieces else []
    for name in dict.fromkeys(e.name for e, _ in runnable):
        records.export(name)
    return Outcome(omitted, tuple(lost))


def _chosen(experiments: Sequence[Experiment], only: str) -> list[tuple[Experiment, Cell]]:
    """The cells whose names contain ``only``; if cells were asked for, there is one."""
    cells = [(e, cell) for e in experiments for cell in e.cells]
    chosen = [(e, cell) for e, cell in cells if only in cell.name]
    if cells and not chosen:
        some = "; ".join(cell.name for _, cell in cells[:FEW])
        raise OptionError(
            f"no cell's name contains {only!r}. There are {len(cells)}, the first: {some}"
        )
    return chosen


def _omitted(cells: Sequence[tuple[Experiment, Cell]], shelf: Shelf) -> Iterator[Omission]:
    for experiment, cell in cells:
        if lacking := cell.network.lacking(shelf):
            yield Omission(experiment.name, cell.name, lacking)


def provenance(cell: Cell, shelf: Shelf) -> dict[str, object]:
    """What a cell's records depend on; a sample's seed is made of this one and its numbers."""
    network = cell.network
    compiled = isinstance(cell, MatchingCell) and cell.compiled
    return {
        "code": code(),
        "versions": dict(versions()),
        "seeds": {"samples": SEED, "weights": INIT_SEED},
        "files": shelf.hashes([network.source.file, network.weights]),
        "shortfall": shelf.shortfall(network.source),
        **({"compiled": True} if compiled else {}),
    }
