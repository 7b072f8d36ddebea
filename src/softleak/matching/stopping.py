"""What may end a run of gradient matching before its evaluations are used: time, or somebody."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from torch import Tensor

from softleak.matching.reconstruction import MatchStatus


@dataclass(frozen=True)
class MatchProgress:
    """How far a run has come.

    Attributes:
        done: evaluations of all problems so far.
        total: how many there may be at most.
        loss: the median loss of the problems now in work.
        active: how many of them are still going on.
    """

    done: int
    total: int
    loss: float
    active: int


@dataclass(eq=False)
class Watch:
    """A handle by which somebody outside ends a run, and hears how far it has come.

    Derive from it and override ``tell`` to show progress, as ``TerminalWatch`` in
    ``softleak.terminal_watch`` does. Neither this class nor the attack installs a signal handler.

    Attributes:
        interrupted: whether somebody asked to stop. The best iterates so far are then returned,
            with the status ``INTERRUPTED``.
    """

    interrupted: bool = field(default=False, init=False)

    def stop(self) -> None:
        """Ask the run to end after the present evaluation; any thread may call this."""
        self.interrupted = True

    def tell(self, progress: MatchProgress) -> None:
        """Hear how far the run has come, several times a second at most."""


@dataclass(eq=False)
class Stopping:
    """The rule by which all batches of one run end.

    Attributes:
        total: the evaluations that all problems of the run may have together.
        seconds: the time limit, counted from the creation of this object; None means no limit.
        watch: who may end the run and is told of it, if anybody.
        every: seconds between two tellings.
    """

    total: int
    seconds: float | None = None
    watch: Watch | None = None
    every: float = 0.2
    _done: int = field(default=0, init=False)
    _began: float = field(default_factory=time.monotonic, init=False)
    _told: float = field(default=0.0, init=False)

    @property
    def interrupted(self) -> bool:
        """Return whether somebody asked to stop."""
        return self.watch is not None and self.watch.interrupted

    @property
    def over(self) -> bool:
        """Return whether to stop now."""
        late = self.seconds is not None and time.monotonic() - self._began > self.seconds
        return self.interrupted or late

    @property
    def ended(self) -> MatchStatus:
        """Return the status of problems that were still going on at the end."""
        if self.interrupted:
            return MatchStatus.INTERRUPTED
        return MatchStatus.OUT_OF_TIME if self.over else MatchStatus.EXHAUSTED

    def tell(self, evaluated: int, losses: Tensor, active: int) -> None:
        """Count an evaluation of so many problems, and pass it on if that is due."""
        self._done += evaluated
        now = time.monotonic()
        if self.watch is None or now - self._told < self.every:
            return
        self._told = now
        loss = float(losses.nanmedian())
        self.watch.tell(MatchProgress(self._done, self.total, loss, active))
