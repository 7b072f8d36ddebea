"""Where a piece of an experiment becomes records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from softleak.experiments.experiment import Attack, Cell
from softleak.experiments.shelf import Shelf
from softleak.sweep import Piece, Record

Key = tuple[str, str]  # an experiment's name and its cell's


@dataclass(frozen=True)
class Laboratory:
    """Computes pieces; it is sent to every worker once, with all data and weights they need."""

    shelf: Shelf
    cells: Mapping[Key, Cell]
    prepared: dict[Key, Attack] = field(default_factory=dict, compare=False)

    @classmethod
    def stocked(cls, shelf: Shelf, cells: Mapping[Key, Cell]) -> Laboratory:
        """A laboratory for these cells, their data and weights opened."""
        for cell in cells.values():
            shelf.images(cell.network.source)
            if cell.network.weights:
                shelf.tensors(cell.network.weights)
        return cls(shelf, cells)

    def __call__(self, piece: Piece) -> Sequence[Record]:
        key = piece.experiment, piece.cell
        if key not in self.prepared:
            self.prepared.clear()  # pieces come cell by cell; one network at a time is enough
            self.prepared[key] = self.cells[key].prepare(self.shelf)
        measured = self.prepared[key](piece.samples, piece.repeat)
        return [
            Record(*key, piece.repeat, sample, measures)
            for sample, measures in zip(piece.samples, measured, strict=True)
        ]
