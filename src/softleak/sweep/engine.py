"""An engine computes pieces somewhere and yields what is finished, in any order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from softleak.sweep.piece import Compute, Piece, Record

TRIES = 3  # workers that may die over one piece before it is given up
Done = tuple[Piece, Sequence[Record] | None]  # None: given up


class Engine(Protocol):
    """Where pieces are computed."""

    def run(self, compute: Compute, pieces: Iterable[Piece]) -> Iterator[Done]:
        """Each piece with its records, as soon as they are there."""
        ...


@dataclass(frozen=True)
class Local:
    """This process, a piece after the other."""

    def run(self, compute: Compute, pieces: Iterable[Piece]) -> Iterator[Done]:
        for piece in pieces:
            yield piece, in_one_thread(compute, piece)


def in_one_thread(compute: Compute, piece: Piece) -> Sequence[Record]:
    """As every engine computes it: sums depend on how many threads share them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return compute(piece)
    finally:
        torch.set_num_threads(before)
