"""Run a sweep: compute what is missing (here, in processes, on a Ray cluster) and record it."""

from __future__ import annotations

import csv
import json
import os
import pickle
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from multiprocessing import get_context, parent_process
from pathlib import Path
from types import ModuleType

import torch

from softleak.core.errors import FileError, OptionError, import_extra
from softleak.io.atomic import replacing

Measures = Mapping[str, float | str | bool | None]  # None: there is nothing to measure


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


# Returns the records of a piece, the same wherever it is computed. It is pickled once per worker.
Compute = Callable[[Piece], Sequence[Record]]


def numbers(records: Iterable[Record], measure: str) -> list[float]:
    """Return a measure's values, without the samples that have none."""
    held = (record.measures.get(measure) for record in records)
    return [float(value) for value in held if isinstance(value, (int, float))]


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

    def __exit__(self, *_: object) -> None:
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
        with self._sound(), self._base:
            self._base.execute("BEGIN IMMEDIATE")
            self._base.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?)", rows)

    def of(self, experiment: str, cell: str) -> list[Record]:
        """Return a cell's records in the order of repetition and sample."""
        query = (
            "SELECT repeat, sample, measures FROM records WHERE experiment = ? AND cell = ? "
            "ORDER BY repeat, sample"
        )
        with self._sound():
            rows = self._base.execute(query, (experiment, cell))
            return [Record(experiment, cell, r, s, json.loads(m)) for r, s, m in rows]

    def export(self, experiment: str) -> Path:
        """Write the records of an experiment's declared cells as comma-separated values."""
        query = "SELECT cell FROM cells WHERE experiment = ? ORDER BY rowid"
        with self._sound():
            cells = self._base.execute(query, (experiment,)).fetchall()
        records = [record for (cell,) in cells for record in self.of(experiment, cell)]
        measured = list(dict.fromkeys(name for r in records for name in r.measures))
        path = self.folder / f"{experiment}.csv"
        with (
            replacing(path) as temporary,
            temporary.open("w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.writer(file)
            writer.writerow(["cell", "repeat", "sample", *measured])
            writer.writerows(
                [r.cell, r.repeat, r.sample, *map(r.measures.get, measured)] for r in records
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
# A place where pieces are computed: it yields each with its records as soon as they are there.
Engine = Callable[[Compute, Iterable[Piece]], Iterator[Done]]


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
    compute: Compute, pieces: Iterable[Piece], records: Records, engine: Engine,
    progress: Callable[[Piece], None] = lambda _: None,
) -> list[Piece]:  # fmt: skip
    """Compute and record pieces, telling ``progress`` of each; return those whose workers died."""
    lost = []
    for piece, found in engine(compute, pieces):
        if found is None:
            lost.append(piece)
        else:
            records.append(found)
        progress(piece)
    return lost


def in_one_thread(compute: Compute, piece: Piece) -> Sequence[Record]:
    """Compute a piece in one thread, as every engine does: sums depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return compute(piece)
    finally:
        torch.set_num_threads(before)


def local(compute: Compute, pieces: Iterable[Piece]) -> Iterator[Done]:
    """Compute in this process, one piece after the other."""
    for piece in pieces:
        yield piece, in_one_thread(compute, piece)


def processes(
    compute: Compute, pieces: Iterable[Piece], workers: int | None = None
) -> Iterator[Done]:
    """Compute in worker processes, by default one per core."""
    packed, own, started = pickle.dumps(compute), threading.local(), []

    def start() -> None:
        # Forked children of a process with torch's threads can hang.
        fresh = get_context("spawn")
        own.pool = ProcessPoolExecutor(1, fresh, initializer=_begin, initargs=(packed,))
        started.append(own.pool)

    def done(piece: Piece) -> Sequence[Record] | None:
        """Compute in the process of this thread, which nothing but its own piece can kill."""
        for _ in range(TRIES_PER_PIECE):
            try:
                found: Sequence[Record] = own.pool.submit(_work, None, piece).result()
            except BrokenProcessPool:
                start()
            else:
                return found
        return None

    threads = ThreadPoolExecutor(workers or os.cpu_count(), initializer=start)
    try:
        busy = {threads.submit(done, piece): piece for piece in pieces}
        for future in as_completed(busy):
            yield busy[future], future.result()
    finally:
        threads.shutdown(cancel_futures=True)
        for pool in started:
            pool.shutdown()


_held: dict[object, Compute] = {}  # what this worker computes with, sent to it once


def _begin(packed: bytes) -> None:
    _held[None] = pickle.loads(packed)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker once its parent is gone: a killed parent cannot tell it to."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(compute: object, piece: Piece) -> Sequence[Record]:
    return in_one_thread(_held[compute], piece)


def cluster(
    compute: Compute, pieces: Iterable[Piece], address: str | None = None,
    workers: int | None = None,
) -> Iterator[Done]:  # fmt: skip
    """Compute in tasks of Ray, by default one per core at a time; Ray tries those that die again.

    An address of "auto" is the cluster that this machine belongs to; None is this machine.
    """
    ray = import_extra("ray", "a cluster needs Ray", "ray")
    begun = not ray.is_initialized()
    if begun:
        _join(ray, address, workers)
    task = ray.remote(num_cpus=1, max_retries=TRIES_PER_PIECE - 1)(_fetch_and_work)
    try:
        shipped, rest = ray.put(compute), iter(pieces)
        cores = int(ray.cluster_resources().get("CPU", 1))
        busy = {task.remote([shipped], piece): piece for piece in islice(rest, workers or cores)}
        while busy:
            (ended,), _ = ray.wait([*busy])
            piece = busy.pop(ended)
            busy |= {task.remote([shipped], further): further for further in islice(rest, 1)}
            try:
                yield piece, ray.get(ended)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from error  # what the piece itself raised
            except ray.exceptions.RayError:  # its workers died, or the machines they were on
                yield piece, None
    finally:
        if begun:
            ray.shutdown()


def _join(ray: ModuleType, address: str | None, workers: int | None) -> None:
    try:
        ray.init(
            address, num_cpus=None if address else workers,
            include_dashboard=None if address else False,
            log_to_driver=False, logging_level="error",
        )  # fmt: skip
    except ConnectionError as error:
        raise OptionError(
            f"no Ray cluster at {address}: start one by `ray start --head`, or leave --address "
            "out to compute on this machine"
        ) from error


def _fetch_and_work(shipped: Sequence[object], piece: Piece) -> Sequence[Record]:
    """Compute in a process of Ray, which fetches what it computes with once."""
    (compute,) = shipped
    if compute not in _held:
        _held.clear()
        _held[compute] = import_module("ray").get(compute)
    return _work(compute, piece)
