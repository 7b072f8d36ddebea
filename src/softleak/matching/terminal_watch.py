"""A progress bar and Ctrl-C for gradient matching on a terminal.

The attack itself draws nothing and handles no signal; whoever runs it on a terminal asks for both
with ``TerminalWatch``.
"""

from __future__ import annotations

import signal
import sys
import threading
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from softleak.matching.reconstruction import MatchProgress, Watch


@dataclass(eq=False)
class TerminalWatch(Watch):
    """A watch that ends a run at Ctrl-C and shows how far it has come.

    The first Ctrl-C ends the run, and the best inputs so far are returned. A second one raises
    ``KeyboardInterrupt`` as usual. The bar is drawn on standard error, if that is a terminal.

    Example:
        >>> with TerminalWatch() as watch:  # doctest: +SKIP
        ...     found = sl.reconstruct(model, share, recovery, watch=watch)
    """

    shown: bool = True  # whether to draw the bar
    _bar: Progress | None = field(default=None, init=False)
    _before: Any = field(default=None, init=False)

    def __enter__(self) -> TerminalWatch:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._interrupt)
        if self.shown and sys.stderr.isatty():
            columns = (TextColumn("matching"), BarColumn(), TimeRemainingColumn())
            loss = TextColumn("loss {task.fields[loss]:.3g} · {task.fields[active]} going on")
            self._bar = Progress(*columns, loss, console=Console(stderr=True), transient=True)
            self._bar.add_task("matching", total=None, loss=float("nan"), active=0)
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if self._bar is not None:
            self._bar.stop()

    def tell(self, progress: MatchProgress) -> None:
        """Draw how far the run has come."""
        if self._bar is not None:
            self._bar.update(
                self._bar.task_ids[0], completed=progress.done, total=progress.total,
                loss=progress.loss, active=progress.active,
            )  # fmt: skip

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Ask the run to end, and give the next Ctrl-C back to whoever had it before."""
        self.stop()
        unknown = self._before is None  # a handler that was not installed by Python
        signal.signal(signal.SIGINT, signal.default_int_handler if unknown else self._before)
