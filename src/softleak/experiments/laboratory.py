"""Where a piece of an experiment becomes records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from softleak.experiments.experiment import Attack, Cell
from softleak.experiments.registry import EXPERIMENTS
from softleak.experiments.shelf import Shelf
from softleak.sweep import Piece, Record


@dataclass(frozen=True)
class Laboratory:
    """Computes pieces; it is sent to every worker once, with all data and weights they need."""

    shelf: Shelf
    prepared: dict[tuple[str, str], Attack] = field(default_factory=dict, compare=False)

    @classmethod
    def stocked(cls, shelf: Shelf, cells: Iterable[Cell]) -> Laboratory:
        """A laboratory with the data and weights of cells opened."""
        for cell in cells:
            shelf.images(cell.network.source)
            if cell.network.weights:
                shelf.tensors(cell.network.weights)
        return cls(shelf)

    def __call__(self, piece: Piece) -> Sequence[Record]:
        key = piece.experiment, piece.cell
        if key not in self.prepared:
            self.prepared.clear()  # pieces come cell by cell; one network at a time is enough
            self.prepared[key] = EXPERIMENTS[piece.experiment].cell(piece.cell).prepare(self.shelf)
        measured = self.prepared[key](piece.samples, piece.repeat)
        return [
            Record(*key, piece.repeat, sample, measures)
            for sample, measures in zip(piece.samples, measured, strict=True)
        ]
