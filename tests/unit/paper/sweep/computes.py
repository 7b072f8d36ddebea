"""What the engines are tried with; importable, so that spawned workers find it."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import torch

from softleak.core.errors import DataError
from softleak.paper.sweep import Piece, Record


def pieces(count: int, together: int = 1) -> list[Piece]:
    return [
        Piece("try", "cell", 0, tuple(range(i, i + together)))
        for i in range(0, count * together, together)
    ]


@dataclass(frozen=True)
class Sums:
    """Floating-point sums whose last bits depend on order and threads."""

    def __call__(self, piece: Piece) -> list[Record]:
        def value(sample: int) -> float:
            x = torch.randn(100_000, generator=torch.Generator().manual_seed(sample))
            return float(x.exp().sum())

        return [
            Record(piece.experiment, piece.cell, piece.repeat, s, {"sum": value(s)})
            for s in piece.samples
        ]


@dataclass(frozen=True)
class Deadly(Sums):
    """Kills its worker over some samples."""

    folder: Path
    always: frozenset[int]

    def __call__(self, piece: Piece) -> list[Record]:
        for sample in piece.samples:
            if sample in self.always:
                (self.folder / str(sample)).touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(piece)


@dataclass(frozen=True)
class Mistaken:
    """Raises what a caller's mistake raises."""

    def __call__(self, piece: Piece) -> list[Record]:
        raise DataError("the data set is empty")
