"""This module computes on a Ray cluster, or on this machine as one (extra `ray`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from types import ModuleType
from typing import Any

from softleak.errors import MissingExtra, OptionError, how_to_install
from softleak.sweep.engine import TRIES_PER_PIECE, Done, in_one_thread
from softleak.sweep.piece import Compute, Piece, Record


class _Worker:
    """This is an actor: it is sent what it computes with once, and keeps it."""

    def __init__(self, compute: Compute) -> None:
        self.compute = compute

    def work(self, piece: Piece) -> Sequence[Record]:
        return in_one_thread(self.compute, piece)


@dataclass(frozen=True)
class Cluster:
    """This computes in Ray's actors, one per core.

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
