"""Compute on a Ray cluster, or on this machine as one (extra `ray`)."""

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
from types import ModuleType
from typing import Any

from softleak.core.errors import MissingExtra, OptionError, how_to_install
from softleak.paper.sweep.records import (
    TRIES_PER_PIECE,
    Compute,
    Done,
    Piece,
    Record,
    in_one_thread,
)

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
    """Compute in worker processes, by default one per core."""

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


class _Worker:
    """An actor: it is sent what it computes with once, and keeps it."""

    def __init__(self, compute: Compute) -> None:
        self.compute = compute

    def work(self, piece: Piece) -> Sequence[Record]:
        return in_one_thread(self.compute, piece)


@dataclass(frozen=True)
class Cluster:
    """Compute in Ray's actors, one per core.

    An actor that dies is started again by Ray, elsewhere if need be, and its piece with it.

    Attributes:
        address: where the cluster is; "auto" is the one this machine belongs to, None this machine.
        workers: the number of actors, if fewer than cores.
    """

    address: str | None = None
    workers: int | None = None

    def run(self, compute: Compute, pieces: Iterable[Piece]) -> Iterator[Done]:
        ray = _ray()
        begun = not ray.is_initialized()
        if begun:
            self._begin(ray)
        try:
            yield from self._work(ray, compute, pieces)
        finally:
            if begun:
                ray.shutdown()

    def _begin(self, ray: ModuleType) -> None:
        try:
            ray.init(
                self.address, num_cpus=None if self.address else self.workers,
                include_dashboard=None if self.address else False,
                log_to_driver=False, logging_level="error",
            )  # fmt: skip
        except ConnectionError as error:
            raise OptionError(
                f"no Ray cluster at {self.address}: start one by `ray start --head`, or leave "
                "--address out to compute on this machine"
            ) from error

    def _work(self, ray: ModuleType, compute: Compute, pieces: Iterable[Piece]) -> Iterator[Done]:
        cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
        count = min(self.workers or cores, cores)  # an actor beyond would wait for a core for ever
        kind = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=TRIES_PER_PIECE - 1)(
            _Worker
        )
        shipped = ray.put(compute)
        actors = [kind.remote(shipped) for _ in range(count)]
        try:
            yield from _computed(ray, actors, pieces)
        finally:  # an actor that is being started again would hold its core for a while
            for actor in actors:
                ray.kill(actor)


def _computed(ray: ModuleType, actors: Sequence[Any], pieces: Iterable[Piece]) -> Iterator[Done]:
    """Compute pieces in actors, each of which is given the next one as soon as it is free."""
    free, busy, rest = list(actors), {}, iter(pieces)
    while True:
        for piece in islice(rest, len(free)):
            actor = free.pop()
            busy[actor.work.remote(piece)] = actor, piece
        if not busy:
            return
        (done,), _ = ray.wait(list(busy), num_returns=1)
        actor, piece = busy.pop(done)
        free.append(actor)
        try:
            yield piece, ray.get(done)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error  # what the piece itself raised
        except ray.exceptions.RayActorError:
            yield piece, None


def _ray() -> ModuleType:
    try:
        import ray
    except ImportError as error:
        raise MissingExtra(f"a cluster needs Ray: {how_to_install('ray')}") from error
    return ray
