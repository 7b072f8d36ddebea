"""Run a sweep: what is missing is computed and kept, piece by piece."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

import torch

from softleak.core.errors import FileError
from softleak.io.atomic import replacing

Value = float | str | bool | None  # None: there is nothing to measure
Measures = Mapping[str, Value]


@dataclass(frozen=True)
class Piece:
    """Samples of a cell that are computed together, the same ones in every run."""

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
    """Return a measure's values, without the samples that have none."""
    held = (record.measures.get(measure) for record in records)
    return [float(value) for value in held if isinstance(value, (int, float))]


class Compute(Protocol):
    """Compute the records of a piece. It is pickled once per worker."""

    def __call__(self, piece: Piece) -> Sequence[Record]:
        """Return the records of a piece, the same wherever and whenever it is computed."""
        ...


FILE = "records.sqlite"
SCHEMA = """
CREATE TABLE IF NOT EXISTS cells (
    experiment TEXT, cell TEXT, provenance TEXT, PRIMARY KEY (experiment, cell)
);
CREATE TABLE IF NOT EXISTS records (
    experiment TEXT, cell TEXT, repeat INTEGER, sample INTEGER, measures TEXT,
    PRIMARY KEY (experiment, cell, repeat, sample)
);
"""


class Records:
    """What was measured so far, in ``records.sqlite`` of a folder, until closed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot keep records in {folder}: {error}") from error
        with self._sound():
            self._base = sqlite3.connect(folder / FILE, isolation_level=None)
            self._base.execute("PRAGMA synchronous = FULL")  # a record that is there stays there
            self._base.executescript(SCHEMA)

    @contextmanager
    def _sound(self) -> Iterator[None]:
        """Raise ``FileError`` for whatever goes wrong when the records are read or written."""
        try:
            yield
        except (sqlite3.OperationalError, sqlite3.IntegrityError) as error:  # not damage
            raise FileError(
                f"the records in {self.folder} cannot be used now ({error}); if another run is "
                "writing there wait for it, else give another --out"
            ) from error
        except (sqlite3.Error, json.JSONDecodeError) as error:
            raise FileError(
                f"the records in {self.folder} are damaged ({error}); give another --out, or "
                f"delete {FILE}"
            ) from error

    def __enter__(self) -> Records:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._base.close()

    def declare(self, experiment: str, cell: str, provenance: Mapping[str, object]) -> None:
        """Record what a cell is computed from; raises if its records come from something else."""
        wanted = json.dumps(provenance, sort_keys=True)
        held, now = self.provenance(experiment, cell), json.loads(wanted)
        if held is None:
            with self._sound():
                self._base.execute("INSERT INTO cells VALUES (?, ?, ?)", (experiment, cell, wanted))
        elif held != now:
            raise FileError(
                f"the records of {experiment}, {cell} in {self.folder} come from other "
                f"{_changed(held, now)}. Give another --out, or run with the same again"
            )

    def provenance(self, experiment: str, cell: str) -> Mapping[str, object] | None:
        """Return what a cell was computed from: versions, seed, hashes."""
        query = "SELECT provenance FROM cells WHERE experiment = ? AND cell = ?"
        with self._sound():
            row = self._base.execute(query, (experiment, cell)).fetchone()
            return None if row is None else dict(json.loads(row[0]))

    def append(self, records: Sequence[Record]) -> None:
        """Keep the records of a piece, all or none."""
        rows = [
            (r.experiment, r.cell, r.repeat, r.sample, json.dumps(r.measures, allow_nan=False))
            for r in records
        ]
        with self._sound():
            self._base.execute("BEGIN IMMEDIATE")
            try:
                self._base.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?)", rows)
                self._base.execute("COMMIT")
            finally:
                if self._base.in_transaction:
                    self._base.execute("ROLLBACK")

    def of(self, experiment: str, cell: str) -> list[Record]:
        """Return a cell's records in the order of repetition and sample."""
        query = (
            "SELECT repeat, sample, measures FROM records WHERE experiment = ? AND cell = ? "
            "ORDER BY repeat, sample"
        )
        with self._sound():
            rows = self._base.execute(query, (experiment, cell))
            return [Record(experiment, cell, r, s, json.loads(m)) for r, s, m in rows]

    def cells(self) -> list[tuple[str, str]]:
        """Return experiment and cell of everything declared."""
        with self._sound():
            return self._base.execute(
                "SELECT experiment, cell FROM cells ORDER BY rowid"
            ).fetchall()

    def export(self, experiment: str) -> Path:
        """Write an experiment's records as a table of comma-separated values."""
        mine = [cell for name, cell in self.cells() if name == experiment]
        records = [record for cell in mine for record in self.of(experiment, cell)]
        measured = list(dict.fromkeys(name for r in records for name in r.measures))
        path = self.folder / f"{experiment}.csv"
        with (
            replacing(path) as temporary,
            temporary.open("w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.writer(file)
            writer.writerow(["cell", "repeat", "sample", *measured])
            for r in records:
                writer.writerow(
                    [r.cell, r.repeat, r.sample, *(r.measures.get(name) for name in measured)]
                )
        return path


def _changed(held: Mapping[str, object], now: Mapping[str, object]) -> str:
    """Return in words how two provenances differ, as it was and as it is."""

    def value(side: Mapping[str, object], other: Mapping[str, object], key: str) -> object:
        mine, theirs = side.get(key), other.get(key)
        if isinstance(mine, dict) and isinstance(theirs, dict):
            return {name: mine[name] for name in mine if mine[name] != theirs.get(name)}
        return mine or "none"

    return "; ".join(
        f"{key} {value(held, now, key)}, now {value(now, held, key)}"
        for key in sorted({*held, *now})
        if held.get(key) != now.get(key)
    )


TRIES_PER_PIECE = 3  # workers that may die over one piece before it is given up
Done = tuple[Piece, Sequence[Record] | None]  # None: given up


class Engine(Protocol):
    """A place where pieces are computed."""

    def run(self, compute: Compute, pieces: Iterable[Piece]) -> Iterator[Done]:
        """Yield each piece with its records as soon as they are there; None means given up."""
        ...


@dataclass(frozen=True)
class Local:
    """Compute in this process, one piece after the other."""

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
