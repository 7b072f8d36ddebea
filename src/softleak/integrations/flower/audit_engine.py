"""Where audits run: in the server's process, or on Ray actors while Flower aggregates."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from importlib import import_module
from itertools import cycle
from typing import Any, Protocol

from softleak.errors import MissingExtra, how_to_install
from softleak.integrations.guarding.auditor import Auditor
from softleak.integrations.guarding.client_update import Group
from softleak.integrations.guarding.round_findings import RoundAudit

AUDIT_ACTORS = 2  # the number of Ray actors


class AuditEngine(Enum):
    """Where the monitor's audits run."""

    INLINE = "labels in the server, before it aggregates; inputs when the run is over"
    RAY = "all on Ray actors; a round's findings come when they are ready"


class AuditRunner(Protocol):
    """An object that takes rounds and returns their audits."""

    def submit(self, number: int, groups: Sequence[Group]) -> None:
        """Audit a round, now or later.

        Args:
            number: the number of the round.
            groups: its updates, grouped by the state that the clients were sent.
        """
        ...

    def ready(self, *, wait: bool) -> list[RoundAudit]:
        """Return the audits that were completed since the last call.

        A round may come twice. The second time it holds some of its clients, with their inputs.

        Args:
            wait: whether to wait until all audits are completed.
        """
        ...


class Inline:
    """This is a runner in this process: labels at once, inputs when somebody waits for them.

    Args:
        auditor: the auditor of the federation's model.
    """

    def __init__(self, auditor: Auditor) -> None:
        self._auditor, self._inputs = auditor, auditor.question.inputs
        self._done: list[RoundAudit] = []
        self._later: list[tuple[int, list[Group]]] = []

    def submit(self, number: int, groups: Sequence[Group]) -> None:
        """Audit the labels of a round, and keep the first updates for later."""
        self._done.append(self._auditor.audit(number, groups))
        if self._inputs:
            self._later.append((number, [group.first(self._inputs) for group in groups]))

    def ready(self, *, wait: bool) -> list[RoundAudit]:
        """Return the audits since the last call; attack the inputs that were kept if ``wait``."""
        done, self._done = self._done, []
        if wait:
            later, self._later = self._later, []
            done += [self._auditor.audit(n, groups, inputs=self._inputs) for n, groups in later]
        return done


class OnRay:
    """A runner on Ray actors, in the Ray that is running already or in a new one.

    Args:
        auditor: the auditor of the federation's model.
        actors: the number of actors.
    """

    def __init__(self, auditor: Auditor, actors: int = AUDIT_ACTORS) -> None:
        try:
            self._ray: Any = import_module("ray")
        except ImportError as error:
            raise MissingExtra(f"audits on actors need Ray: {how_to_install('ray')}") from error
        self._auditor, self._count = auditor, actors
        self._actors: Any = None
        self._waiting: list[Any] = []

    def submit(self, number: int, groups: Sequence[Group]) -> None:
        """Hand a round over to the next actor."""
        if self._actors is None:  # not before the first round, because a simulation starts Ray
            self._ray.init(ignore_reinit_error=True, log_to_driver=False)
            # No core is reserved, because a simulation has given all of them to its clients.
            remote = self._ray.remote(num_cpus=0)(_Actor)
            self._actors = cycle([remote.remote(self._auditor) for _ in range(self._count)])
        self._waiting.append(next(self._actors).audit.remote(number, list(groups)))

    def ready(self, *, wait: bool) -> list[RoundAudit]:
        """Return the audits that the actors have completed; all of them if ``wait``."""
        if not self._waiting:
            return []
        done, self._waiting = self._ray.wait(
            self._waiting, num_returns=len(self._waiting), timeout=None if wait else 0
        )
        return list(self._ray.get(done))


class _Actor:
    """A process that holds an auditor."""

    def __init__(self, auditor: Auditor) -> None:
        self._auditor = auditor

    def audit(self, number: int, groups: Sequence[Group]) -> RoundAudit:
        """Return the audit of a round, with inputs."""
        return self._auditor.audit(number, groups, inputs=self._auditor.question.inputs)


def runner(engine: AuditEngine, auditor: Auditor) -> AuditRunner:
    """Return the runner of an engine.

    Args:
        engine: where audits run.
        auditor: the auditor of the federation's model.
    """
    return OnRay(auditor) if engine is AuditEngine.RAY else Inline(auditor)
