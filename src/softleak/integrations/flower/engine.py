"""Where audits run: here, or on Ray actors while Flower aggregates."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from importlib import import_module
from itertools import cycle
from typing import Any, Protocol

from softleak.errors import MissingExtra
from softleak.integrations.flower.auditor import Auditor
from softleak.integrations.flower.findings import RoundAudit
from softleak.integrations.flower.update import Group

ACTORS = 2


class Engine(Enum):
    """Where the monitor's audits run."""

    INLINE = "labels in the server, before it aggregates; inputs when the run is over"
    RAY = "all on Ray actors; a round's findings come when they are ready"


class Runner(Protocol):
    """Takes rounds and gives audits back."""

    def submit(self, number: int, groups: Sequence[Group]) -> None:
        """Audit a round, now or later."""
        ...

    def ready(self, *, wait: bool) -> list[RoundAudit]:
        """The audits that are done since the last call; all that are left if one is to wait.

        A round may come twice, the second time with some of its clients and their inputs.
        """
        ...


class Inline:
    """Labels at once; inputs, which take seconds, when somebody waits for them."""

    def __init__(self, auditor: Auditor) -> None:
        self._auditor, self._inputs = auditor, auditor.question.inputs
        self._done: list[RoundAudit] = []
        self._later: list[tuple[int, list[Group]]] = []

    def submit(self, number: int, groups: Sequence[Group]) -> None:
        self._done.append(self._auditor.audit(number, groups))
        if self._inputs:
            self._later.append((number, [group.first(self._inputs) for group in groups]))

    def ready(self, *, wait: bool) -> list[RoundAudit]:
        done, self._done = self._done, []
        if wait:
            later, self._later = self._later, []
            done += [self._auditor.audit(n, groups, inputs=self._inputs) for n, groups in later]
        return done


class OnRay:
    """Audits on actors of the Ray that runs here already, as in a simulation, or of a new one."""

    def __init__(self, auditor: Auditor, actors: int = ACTORS) -> None:
        try:
            self._ray: Any = import_module("ray")
        except ImportError as error:
            raise MissingExtra("audits on actors need Ray: pip install 'softleak[ray]'") from error
        self._auditor, self._count = auditor, actors
        self._actors: Any = None
        self._waiting: list[Any] = []

    def submit(self, number: int, groups: Sequence[Group]) -> None:
        if self._actors is None:  # not before a round is there: a simulation starts Ray first
            self._ray.init(ignore_reinit_error=True, log_to_driver=False)
            # No core of its own is asked for: a simulation has given them all to its clients.
            remote = self._ray.remote(num_cpus=0)(_Actor)
            self._actors = cycle([remote.remote(self._auditor) for _ in range(self._count)])
        self._waiting.append(next(self._actors).audit.remote(number, list(groups)))

    def ready(self, *, wait: bool) -> list[RoundAudit]:
        if not self._waiting:
            return []
        done, self._waiting = self._ray.wait(
            self._waiting, num_returns=len(self._waiting), timeout=None if wait else 0
        )
        return list(self._ray.get(done))


class _Actor:
    """One process with an auditor."""

    def __init__(self, auditor: Auditor) -> None:
        self._auditor = auditor

    def audit(self, number: int, groups: Sequence[Group]) -> RoundAudit:
        return self._auditor.audit(number, groups, inputs=self._auditor.question.inputs)


def runner(engine: Engine, auditor: Auditor) -> Runner:
    """The runner of an engine."""
    return OnRay(auditor) if engine is Engine.RAY else Inline(auditor)
