"""Time, Ctrl-C and progress: what may end a reconstruction before its evaluations are used."""

from __future__ import annotations

import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from softleak.matching.results import MatchStatus

EVERY = 0.2  # seconds between looks at the losses


@dataclass(eq=False)
class Watch:
    """One for all batches of a call: ``total`` evaluations of all problems, of which some are done.

    The first Ctrl-C ends the work and keeps what was found; a second one is an ordinary one.
    """

    total: int
    seconds: float | None = None
    shown: bool = False
    done: int = 0
    interrupted: bool = False
    _began: float = field(default_factory=time.monotonic)
    _looked: float = 0.0
    _bar: Progress | None = None
    _before: Any = None

    def __enter__(self) -> Watch:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._stop)
        if self.shown and sys.stderr.isatty():
            columns = (TextColumn("matching"), BarColumn(), TimeRemainingColumn())
            loss = TextColumn("loss {task.fields[loss]:.3g} · {task.fields[active]} going on")
            self._bar = Progress(*columns, loss, console=Console(stderr=True), transient=True)
            self._bar.add_task("matching", total=self.total, loss=float("nan"), active=0)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if self._bar is not None:
            self._bar.stop()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.interrupted = True
        signal.signal(signal.SIGINT, self._before)

    @property
    def over(self) -> bool:
        """Whether to stop now."""
        late = self.seconds is not None and time.monotonic() - self._began > self.seconds
        return self.interrupted or late

    @property
    def ended(self) -> MatchStatus:
        """How problems ended that were still going on."""
        if self.interrupted:
            return MatchStatus.INTERRUPTED
        return MatchStatus.OUT_OF_TIME if self.over else MatchStatus.EXHAUSTED

    def tell(self, evaluated: int, losses: Tensor, active: int) -> None:
        """After an evaluation of so many problems."""
        self.done += evaluated
        now = time.monotonic()
        if self._bar is None or now - self._looked < EVERY:
            return
        self._looked = now
        loss = float(losses.nanmedian())
        self._bar.update(self._bar.task_ids[0], completed=self.done, loss=loss, active=active)
