"""This module finds the weakest noise that stops the attack on one share, for a live client.

Settings are in units of the share's own root mean square, so that a learning rate nobody said does
no harm. Success is scored against what the undefended share gave away. Where it ends the words are
"this attack did not succeed": another attack may.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice

from softleak.auditing.audit_options import Options
from softleak.auditing.audit_run import NamedShare
from softleak.auditing.defended_attack import Shot, Target, walks
from softleak.auditing.findings import LabelFinding
from softleak.auditing.named import classes_named
from softleak.auditing.rates import Leak, Rate
from softleak.auditing.reports import AuditReport
from softleak.defenses import Defense, GaussianNoise
from softleak.defenses.noise import Source
from softleak.errors import OptionError
from softleak.labels.recover import recover
from softleak.results import Recovery
from softleak.share import GradientShare
from softleak.subject import Subject


@dataclass(frozen=True)
class NoiseGrid:
    """These settings span the grid of noise that is tried."""

    powers: range = range(
        -12, 12
    )  # powers of the factor, in units of the root mean square of the share
    factor: float = 2.0  # between one setting and the next
    class_start: int = 16  # the place in the grid where looking for a hidden class begins
    input_start: int = 4  # the place in the grid where looking for a hidden input begins


GRID = NoiseGrid()


STOPPABLE = frozenset({Leak.LABEL, Leak.CLASS, Leak.INPUT, Leak.COMPOSITION})
Make = Callable[[float, Source], Defense]


def check_search(leaks: frozenset[Leak], seeds: int) -> None:
    """Raise ``OptionError`` for what noise cannot stop, or no trials."""
    if not leaks or leaks - STOPPABLE:
        names, came = (", ".join(sorted(x.value for x in some)) for some in (STOPPABLE, leaks))
        raise OptionError(f"expected some of {names} to be stopped, got {came or 'none'}")
    if seeds < 1:
        raise OptionError(f"expected one trial or more, got {seeds}")


@dataclass(frozen=True)
class Stopped:
    """This holds a setting without a success, and how often the class was still named there.

    ``guesses`` counts every right class, also those the attack was not sure of; None if there is no
    single class to guess, because the update is of several samples.
    """

    setting: float
    guesses: Rate | None

    @property
    def class_bound(self) -> float:
        """Return the upper end of Wilson's interval of 95 % for how often the class is named."""
        return 1.0 if self.guesses is None else self.guesses.interval[1]


@dataclass(frozen=True, eq=False)
class Search:
    """This tries noise on one share until the attacks named by ``leaks`` fail."""

    subject: Subject
    target: Target
    options: Options
    leaks: frozenset[Leak]
    seeds: int = 3
    make: Make = GaussianNoise
    known: dict[tuple[float, int], _Trial] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_search(self.leaks, self.seeds)

    @classmethod
    def of(
        cls,
        subject: Subject,
        share: GradientShare,
        report: AuditReport,
        options: Options,
        leaks: frozenset[Leak],
        seeds: int,
        make: Make = GaussianNoise,
    ) -> Search:
        """Return a search on a share that was audited undefended."""
        return cls(subject, Target.of(NamedShare("", share), report), options, leaks, seeds, make)

    def weakest(self) -> Stopped | None:
        """Return the weakest setting of the grid that stops everything, None if none does.

        Labels take less time to attack than inputs and more noise to hide, so they go first.
        """
        unit = root_mean_square(self.target.share.share)
        grid = [unit * GRID.factor**power for power in GRID.powers]
        names = self.leaks - {Leak.INPUT}
        if names:
            grid = _from_first(
                grid, GRID.class_start, lambda setting: not self._hit(setting, names)
            )
        if Leak.INPUT in self.leaks:
            seen = frozenset({Leak.INPUT})
            start = GRID.input_start if not names else 0
            # An inversion takes seconds, so that one trial has to do.
            grid = _from_first(grid, start, lambda setting: not self._hit(setting, seen, 1))
        return self.at(grid[0]) if grid else None

    def at(self, setting: float) -> Stopped:
        """Return how often the attack names the right class behind a setting, sure or not."""
        if self.target.label is None:
            return Stopped(setting, None)
        true = int(self.target.label.argmax())
        found = [trial.recovery.class_index for trial in self._trials(setting)]
        hits = sum(index is not None and index == true for index in found)
        return Stopped(setting, Rate(hits, len(found)))

    def stops(self, sent: GradientShare, setting: float = 0.0) -> bool:
        """Return whether the attacks fail on what is really sent, behind noise of this setting."""
        return not self._leaks(_Trial(self, sent, setting), self.leaks)

    def _hit(self, setting: float, leaks: frozenset[Leak], trials: int | None = None) -> bool:
        return any(self._leaks(trial, leaks) for trial in islice(self._trials(setting), trials))

    def _leaks(self, trial: _Trial, leaks: frozenset[Leak]) -> bool:
        if Leak.COMPOSITION in leaks and self._composed(trial):
            return True
        if self.target.label is None and self.target.pixels is None:
            return False  # there is nothing to reach, and attacks on labels take their time
        shot = Shot(self.target, trial.sent, trial.sent, self.options, leaks)
        named = (shot.hits(leak, trial.recovery, ()) for leak in leaks & {Leak.LABEL, Leak.CLASS})
        walked = walks(self.subject) if Leak.INPUT in leaks else ()
        return any(named) or shot.sees(trial.recovery, walked, believed=True)

    def _composed(self, trial: _Trial) -> bool:
        """Return whether an attack names a class that is in the update."""
        if self.target.classes & classes_named(self.subject, trial.sent, trial.setting):
            return True
        return LabelFinding(trial.recovery, 0.0).class_index in self.target.classes

    def _trials(self, setting: float) -> Iterator[_Trial]:
        """Yield the trial of every seed; each is recovered once, however often it is asked for."""
        for seed in range(self.seeds):
            if (setting, seed) not in self.known:
                sent = self.make(setting, seed)(self.target.share.share)
                self.known[setting, seed] = _Trial(self, sent, setting)
            yield self.known[setting, seed]


@dataclass(frozen=True, eq=False)
class _Trial:
    """This holds what was sent behind noise, and what the attack makes of its label."""

    search: Search
    sent: GradientShare
    setting: float

    @cached_property
    def recovery(self) -> Recovery:
        """Return the recovery by all that is known of the share."""
        return recover(self.search.subject, [self.sent], self.search.options.knowledge)[0]


def stronger(stopped: Stopped) -> Stopped:
    """Return the next setting of the grid, of which no trial was made."""
    return replace(stopped, setting=stopped.setting * GRID.factor)


def root_mean_square(share: GradientShare) -> float:
    """Return the size of a share's entries."""
    total = sum(float(g.double().square().sum()) for g in share.values())
    return math.sqrt(total / max(sum(g.numel() for g in share.values()), 1)) or 1.0


def _from_first(grid: list[float], start: int, hidden: Callable[[float], bool]) -> list[float]:
    """Return the grid from the weakest hiding setting on; stronger ones are taken to hide too.

    Looked for from ``start`` in steps that double, then by bisection.
    """
    low, high, step = -1, len(grid), 1  # the last known not to hide, the first known to
    index = min(start, high - 1)
    while high - low > 1:
        if hidden(grid[index]):
            high, ahead = index, index - step
        else:
            low, ahead = index, index + step
        index = ahead if low < ahead < high else (low + high) // 2
        step *= 2
    return grid[high:]
