"""The answer of gradient matching: an input, how the search for it ended, and how it is watched."""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import FrameType, TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from softleak.core.results import Status, Told


class Way(Enum):
    """How an input was found."""

    DIVISION = "one division of the first layer's gradients"
    PATCHES = "closed form, from gradients of embeddings"
    WALK = "exact inversion, layer by layer"
    SOLVING = "Gauss–Newton on the whole share"
    MATCHING = "gradient matching"


@dataclass(frozen=True, eq=False)
class Certificate:
    """How well a share determines the inputs that were found, and why it may say so."""

    proved: bool  # explained, and every entry of the inputs is determined
    reason: str = ""  # why it is not proved, in a sentence; empty if it is
    explained: bool = False  # whether every layer of the share is explained to within its rounding
    layers: Mapping[str, float] = field(default_factory=dict)  # misfits, in expected errors
    misfits: tuple[float, ...] = ()  # of the whole share after each step, in units of rounding
    error: Tensor | None = None  # the predicted standard error of each entry, if it is known
    # The same if a direction that the share leaves open is as unsure as the inputs are wide; None
    # unless leaving directions open is all that is missing for a proof.
    expected: Tensor | None = None
    spectrum: Tensor | None = None  # the same along principal directions, the best first
    undetermined: int = 0  # how many directions the share does not determine
    seconds: float = 0.0  # how long it took

    @property
    def largest_error(self) -> float:
        """Return the predicted standard error along the worst determined direction."""
        return math.inf if self.spectrum is None else float(self.spectrum[-1])

    def psnr_predicted(self, pixel: Tensor | float = 1.0) -> float:
        """Return the PSNR in dB that errors predict, if one unit of input is so many pixels."""
        error = self.error if self.expected is None else self.expected
        if error is None:
            return -math.inf
        return -10 * math.log10(float((error * pixel).square().mean()) + 1e-300)


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """An input whose gradient comes near to the share's, and the label it was found with.

    Of a share of a batch, ``input``, ``label`` and ``error`` hold all B samples, in the order of
    the recovery.
    """

    status: Status  # how the search ended
    input: Tensor | None = None  # of one sample, or (B, …); None if nothing could be matched
    label: Tensor | None = None  # the soft label (C,) it was found with, or (B, C)
    loss: float = float("inf")  # the objective at the input, priors included
    misfit: float = float("inf")  # what remains of the gradient alone, relative to its size
    evaluations: int = 0  # how often the loss and its gradient were evaluated, over all attempts
    reason: str = ""  # what did not fit, if the status is ``UNFIT``; or why nothing is proved
    error: Tensor | None = None  # the predicted standard error of each entry, if solved for
    certificate: Certificate | None = None  # what is proved and why, if solved for
    way: Way | None = None  # how it was found, if that was left open
    beside: Told | None = None  # why a stronger way did not find it

    @property
    def proved(self) -> bool:
        return self.status is Status.PROVED

    @property
    def predicted(self) -> bool:
        """Return whether it explains the share, so that its error is known without any truth."""
        if self.error is None or self.certificate is None:
            return False
        return self.certificate.expected is not None

    @property
    def psnr_predicted(self) -> float | None:
        """Return the PSNR in dB that ``error`` predicts, with the input's own range as the peak."""
        if self.certificate is None or self.error is None or self.input is None:
            return None
        wide = float(self.input.max() - self.input.min())
        return self.certificate.psnr_predicted(1 / wide if wide else 1.0)

    @property
    def message(self) -> str:
        return self.reason or self.status.value


@dataclass(frozen=True)
class MatchProgress:
    """How far a run has come."""

    done: int  # evaluations of all problems so far
    total: int  # how many there may be at most
    loss: float  # the median loss of the problems now in work
    active: int  # how many of them are still going on


@dataclass(eq=False)
class Watch:
    """A handle by which somebody outside ends a run, and hears how far it has come.

    Derive from it and override ``tell`` to show progress, as ``TerminalWatch`` in
    ``softleak.matching.reconstruction`` does. No signal handler is installed here.
    """

    interrupted: bool = field(default=False, init=False)  # the best iterates are then returned

    def stop(self) -> None:
        """Ask the run to end after the present evaluation; any thread may call this."""
        self.interrupted = True

    def tell(self, progress: MatchProgress) -> None:
        """Hear how far the run has come, several times a second at most."""


@dataclass(eq=False)
class Stopping:
    """The rule by which all batches of one run end."""

    total: int  # the evaluations that all problems of the run may have together
    seconds: float | None = None  # the time limit, from the creation of this object
    watch: Watch | None = None  # who may end the run and is told of it, if anybody
    every: float = 0.2  # seconds between two tellings
    _done: int = field(default=0, init=False)
    _began: float = field(default_factory=time.monotonic, init=False)
    _told: float = field(default=0.0, init=False)

    @property
    def over(self) -> bool:
        late = self.seconds is not None and time.monotonic() - self._began > self.seconds
        return late or (self.watch is not None and self.watch.interrupted)

    @property
    def ended(self) -> Status:
        """Return the status of problems that were still going on at the end."""
        if self.watch is not None and self.watch.interrupted:
            return Status.INTERRUPTED
        return Status.OUT_OF_TIME if self.over else Status.EXHAUSTED

    def tell(self, evaluated: int, losses: Tensor, active: int) -> None:
        """Count an evaluation of so many problems, and pass it on if that is due."""
        self._done += evaluated
        now = time.monotonic()
        if self.watch is None or now - self._told < self.every:
            return
        self._told = now
        loss = float(losses.nanmedian())
        self.watch.tell(MatchProgress(self._done, self.total, loss, active))


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
