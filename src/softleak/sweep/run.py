"""The sweep: what is missing is computed and kept, piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from softleak.sweep.engine import Engine
from softleak.sweep.piece import Compute, Piece
from softleak.sweep.records import Records

Progress = Callable[[Piece], None]


def missing(pieces: Iterable[Piece], records: Records) -> list[Piece]:
    """The pieces whose samples are not all recorded."""
    held: dict[tuple[str, str], set[tuple[int, int]]] = {}
    lacking = []
    for piece in pieces:
        cell = piece.experiment, piece.cell
        if cell not in held:
            held[cell] = {(record.repeat, record.sample) for record in records.of(*cell)}
        if not all((piece.repeat, sample) in held[cell] for sample in piece.samples):
            lacking.append(piece)
    return lacking


def sweep(
    compute: Compute,
    pieces: Iterable[Piece],
    records: Records,
    engine: Engine,
    progress: Progress = lambda _: None,
) -> list[Piece]:
    """Compute pieces and keep their records; those that were given up are returned."""
    lost = []
    for piece, found in engine.run(compute, pieces):
        if found is None:
            lost.append(piece)
        else:
            records.append(found)
        progress(piece)
    return lost
