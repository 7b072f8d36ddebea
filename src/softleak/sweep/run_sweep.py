"""This module runs a sweep: what is missing is computed and kept, piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from softleak.sweep.engine import Engine
from softleak.sweep.piece import Compute, Piece
from softleak.sweep.records import Records

Progress = Callable[[Piece], None]


def missing(pieces: Iterable[Piece], records: Records) -> list[Piece]:
    """Return the pieces whose samples are not all recorded."""
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
    """Compute pieces and keep their records.

    Args:
        compute: returns the records of a piece.
        pieces: what is to be computed.
        records: where the records are kept.
        engine: where pieces are computed.
        progress: is told of each piece when it is done.

    Returns:
        The pieces that were given up because their workers died.
    """
    lost = []
    for piece, found in engine.run(compute, pieces):
        if found is None:
            lost.append(piece)
        else:
            records.append(found)
        progress(piece)
    return lost
