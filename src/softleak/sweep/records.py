"""Records in SQLite: a transaction for every piece, so that a kill at any moment loses none."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from softleak.atomic import replacing
from softleak.errors import FileError
from softleak.sweep.piece import Record

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
    """What was measured so far, in a folder: ``records.sqlite``, open until the block ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(folder / FILE, isolation_level=None)
            self._base.execute("PRAGMA synchronous = FULL")  # a record that is there stays there
            self._base.executescript(SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise FileError(f"cannot keep records in {folder}: {error}") from error

    def __enter__(self) -> Records:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._base.close()

    def declare(self, experiment: str, cell: str, provenance: Mapping[str, object]) -> None:
        """Say what a cell is computed from; what was recorded must come from the same."""
        wanted = json.dumps(provenance, sort_keys=True)
        held = self.provenance(experiment, cell)
        if held is None:
            self._base.execute("INSERT INTO cells VALUES (?, ?, ?)", (experiment, cell, wanted))
        elif held != json.loads(wanted):
            now = json.loads(wanted)
            changed = "; ".join(
                f"{key} {held.get(key)}, now {now.get(key)}"
                for key in sorted({*held, *now})
                if held.get(key) != now.get(key)
            )
            raise FileError(
                f"the records of {experiment}, {cell} in {self.folder} come from other {changed}. "
                "Give another --out, or run with the same again"
            )

    def provenance(self, experiment: str, cell: str) -> Mapping[str, object] | None:
        """What a cell was computed from: versions, seed, hashes."""
        query = "SELECT provenance FROM cells WHERE experiment = ? AND cell = ?"
        row = self._base.execute(query, (experiment, cell)).fetchone()
        return None if row is None else dict(json.loads(row[0]))

    def append(self, records: Sequence[Record]) -> None:
        """Keep the records of a piece, all or none."""
        rows = [
            (r.experiment, r.cell, r.repeat, r.sample, json.dumps(r.measures, allow_nan=False))
            for r in records
        ]
        try:
            self._base.execute("BEGIN IMMEDIATE")
            self._base.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?)", rows)
            self._base.execute("COMMIT")
        except sqlite3.Error as error:
            if self._base.in_transaction:
                self._base.execute("ROLLBACK")
            raise FileError(
                f"cannot add records to {self.folder}: {error}; is another run writing there?"
            ) from error

    def of(self, experiment: str, cell: str) -> list[Record]:
        """A cell's records in the order of repetition and sample."""
        query = (
            "SELECT repeat, sample, measures FROM records WHERE experiment = ? AND cell = ? "
            "ORDER BY repeat, sample"
        )
        rows = self._base.execute(query, (experiment, cell))
        return [Record(experiment, cell, r, s, json.loads(m)) for r, s, m in rows]

    def cells(self) -> Iterator[tuple[str, str]]:
        """Experiment and cell of everything declared."""
        rows = self._base.execute("SELECT experiment, cell FROM cells ORDER BY rowid")
        yield from rows.fetchall()

    def export(self, experiment: str) -> Path:
        """Write an experiment's records as a table of comma-separated values."""
        mine = [cell for name, cell in self.cells() if name == experiment]
        records = [record for cell in mine for record in self.of(experiment, cell)]
        measured = list(dict.fromkeys(name for r in records for name in r.measures))
        path = self.folder / f"{experiment}.csv"
        with replacing(path) as temporary, temporary.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["cell", "repeat", "sample", *measured])
            for r in records:
                writer.writerow(
                    [r.cell, r.repeat, r.sample, *(r.measures.get(name) for name in measured)]
                )
        return path
