"""This module holds what is computed at once, and what is kept of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Value = float | str | bool | None  # None: there is nothing to measure
Measures = Mapping[str, Value]


@dataclass(frozen=True)
class Piece:
    """These are samples of a cell that are computed together, the same ones in every run."""

    experiment: str
    cell: str
    repeat: int
    samples: tuple[int, ...]


@dataclass(frozen=True)
class Record:
    """This is what was measured of one sample."""

    experiment: str
    cell: str
    repeat: int
    sample: int
    measures: Measures


def numbers(records: Iterable[Record], measure: str) -> list[float]:
    """Return a measure's values, without the samples that have none."""
    held = (record.measures.get(measure) for record in records)
    return [float(value) for value in held if isinstance(value, (int, float))]


class Compute(Protocol):
    """This computes the records of a piece. It is pickled once per worker."""

    def __call__(self, piece: Piece) -> Sequence[Record]:
        """Return the records of a piece, the same wherever and whenever it is computed."""
        ...
