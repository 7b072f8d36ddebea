"""This module computes in processes of this machine.

A process that dies is replaced, and costs only what it was computing.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from itertools import chain, islice
from multiprocessing import get_all_start_methods, get_context, parent_process
from multiprocessing.context import BaseContext
from threading import Thread

from softleak.sweep.engine import TRIES_PER_PIECE, Done, in_one_thread
from softleak.sweep.piece import Compute, Piece, Record

_held: list[Compute] = []  # what this worker computes with, sent to it once


def _begin(packed: bytes) -> None:
    _held[:] = [pickle.loads(packed)]
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker once its parent is gone: a killed parent cannot tell it to."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(piece: Piece) -> Sequence[Record]:
    return in_one_thread(_held[0], piece)


def _submit(pool: ProcessPoolExecutor, piece: Piece) -> Future[Sequence[Record]]:
    try:
        return pool.submit(_work, piece)
    except BrokenProcessPool as error:  # a worker died before it was given anything
        failed: Future[Sequence[Record]] = Future()
        failed.set_exception(error)
        return failed


@dataclass(frozen=True)
class Processes:
    """This computes in worker processes, by default one per core."""

    workers: int = field(default_factory=lambda: os.cpu_count() or 1)

    def run(self, compute: Compute, pieces: Iterable[Piece]) -> Iterator[Done]:
        packed, rest = pickle.dumps(compute), iter(pieces)
        while lost := (yield from _until_one_dies(self.workers, packed, rest)):
            yield from _one_by_one(packed, lost)


def _one_by_one(packed: bytes, lost: list[Piece]) -> Iterator[Done]:
    """Compute again what was under way when a worker died: only the piece it died over has blame.

    Alone in a pool of one, each death is that of the piece itself.
    """
    deaths, rest = Counter(lost), iter(lost)
    while killing := (yield from _until_one_dies(1, packed, rest)):
        (piece,) = killing
        deaths[piece] += 1
        if deaths[piece] < TRIES_PER_PIECE:
            rest = chain(killing, rest)
        else:
            yield piece, None


def _context() -> BaseContext:
    """Return how workers are started.

    Forked children of a process in which torch's threads run can hang. Where the system can, a
    server that has imported torch and computed nothing is forked instead, so that torch is imported
    once for all workers; elsewhere every worker is spawned.
    """
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    return context


def _until_one_dies(
    workers: int, packed: bytes, rest: Iterator[Piece]
) -> Generator[Done, None, list[Piece]]:
    """Compute until all is done or a worker dies; the pieces that were under way then."""
    # Only as many are handed out as there are workers: a death then costs no more than that.
    with ProcessPoolExecutor(workers, _context(), initializer=_begin, initargs=(packed,)) as pool:
        busy: dict[Future[Sequence[Record]], Piece] = {}
        while True:
            for piece in islice(rest, workers - len(busy)):
                busy[_submit(pool, piece)] = piece
            if not busy:
                return []
            lost = []
            for future in wait(busy, return_when=FIRST_COMPLETED).done:
                try:
                    yield busy[future], future.result()
                except BrokenProcessPool:
                    lost.append(busy[future])
                del busy[future]
            if lost:
                return [*lost, *busy.values()]
