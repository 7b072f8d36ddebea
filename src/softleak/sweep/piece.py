"""What is computed at once, and what is kept of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Value = float | str | bool | None  # None: there is nothing to measure
Measures = Mapping[str, Value]


@dataclass(frozen=True)
class Piece:
    """Samples of a cell that are computed together. Which these are depends on no run."""

    experiment: str
    cell: str
    repeat: int
    samples: tuple[int, ...]


@dataclass(frozen=True)
class Record:
    """What was measured of one sample."""

    experiment: str
    cell: str
    repeat: int
    sample: int
    measures: Measures


def numbers(records: Iterable[Record], measure: str) -> list[float]:
    """A measure's values; of samples that have none, nothing."""
    held = (record.measures.get(measure) for record in records)
    return [float(value) for value in held if isinstance(value, (int, float))]


class Compute(Protocol):
    """A piece in, its records out. It is pickled once for every worker."""

    def __call__(self, piece: Piece) -> Sequence[Record]:
        """The records of a piece, the same wherever and whenever it is computed."""
        ...
