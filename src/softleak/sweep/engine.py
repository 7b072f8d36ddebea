"""This module says what an engine is: it computes pieces and yields them in any order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from softleak.sweep.piece import Compute, Piece, Record

TRIES_PER_PIECE = 3  # workers that may die over one piece before it is given up
Done = tuple[Piece, Sequence[Record] | None]  # None: given up


class Engine(Protocol):
    """This is a place where pieces are computed."""

    def run(self, compute: Compute, pieces: Iterable[Piece]) -> Iterator[Done]:
        """Yield each piece with its records as soon as they are there; None means given up."""
        ...


@dataclass(frozen=True)
class Local:
    """This computes in this process, one piece after the other."""

    def run(self, compute: Compute, pieces: Iterable[Piece]) -> Iterator[Done]:
        for piece in pieces:
            yield piece, in_one_thread(compute, piece)


def in_one_thread(compute: Compute, piece: Piece) -> Sequence[Record]:
    """Compute a piece in one thread, as every engine does: sums depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return compute(piece)
    finally:
        torch.set_num_threads(before)
