"""This module holds the place where a piece of an experiment becomes records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from softleak.experiments.experiment import Attack, Cell
from softleak.experiments.shelf import Shelf
from softleak.sweep import Piece, Record

Key = tuple[str, str]  # the names of an experiment and of a cell


@dataclass(frozen=True)
class Laboratory:
    """A function that computes pieces.

    It is sent to every worker once, with all data and weights that the worker needs.

    Attributes:
        shelf: the data packs and weights, opened.
        cells: the cells that pieces may come from.
        prepared: the attack of the cell that was computed last.
    """

    shelf: Shelf
    cells: Mapping[Key, Cell]
    prepared: dict[Key, Attack] = field(default_factory=dict, compare=False)

    @classmethod
    def stocked(cls, shelf: Shelf, cells: Mapping[Key, Cell]) -> Laboratory:
        """Return a laboratory for these cells, after opening their data and weights.

        Args:
            shelf: the folders of data packs and weights.
            cells: the cells to compute, by the names of their experiment and their own.
        """
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
