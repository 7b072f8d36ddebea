"""The weakest noise that stops the attack on one share: what-if, for a client in a hurry.

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

from softleak.audit.findings import LabelFinding
from softleak.audit.named import classes_named
from softleak.audit.rates import Leak, Rate
from softleak.audit.reports import AuditReport
from softleak.audit.run import NamedShare, Options, recover
from softleak.audit.shots import Shot, Target, walks
from softleak.audit.subject import Subject
from softleak.defenses import Defense, GaussianNoise
from softleak.defenses.noise import Source
from softleak.errors import OptionError
from softleak.results import Recovery
from softleak.share import GradientShare

POWERS = range(-12, 12)  # of FACTOR: noise from far below the share's entries to far above
FACTOR = 2.0
HIDES_CLASS, HIDES_INPUT = 16, 4  # powers at which looking begins: where it often ends
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
    """A setting at which the attack succeeded in no trial, and how often it still named the class.

    ``guesses`` counts every right class, also those the attack was not sure of; None if there is no
    single class to guess, because the update is of several samples.
    """

    setting: float
    guesses: Rate | None

    @property
    def class_bound(self) -> float:
        """What the class accuracy of this attack stays below, by Wilson's interval of 95 %."""
        return 1.0 if self.guesses is None else self.guesses.interval[1]


@dataclass(frozen=True, eq=False)
class Search:
    """Tries noise on one share until the attacks named by ``leaks`` fail."""

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
        """A search on a share that was audited undefended."""
        return cls(subject, Target.of(NamedShare("", share), report), options, leaks, seeds, make)

    def weakest(self) -> Stopped | None:
        """The weakest setting of the grid that stops everything; None if the strongest does not.

        Labels take less time to attack than inputs and more noise to hide, so they go first.
        """
        unit = root_mean_square(self.target.share.share)
        grid = [unit * FACTOR**power for power in POWERS]
        names = self.leaks - {Leak.INPUT}
        if names:
            grid = _from_first(grid, HIDES_CLASS, lambda setting: not self._hit(setting, names))
        if Leak.INPUT in self.leaks:
            seen = frozenset({Leak.INPUT})
            start = HIDES_INPUT if not names else 0
            # An inversion takes seconds, so that one trial has to do.
            grid = _from_first(grid, start, lambda setting: not self._hit(setting, seen, 1))
        return self.at(grid[0]) if grid else None

    def at(self, setting: float) -> Stopped:
        """A setting, and how often the attack names the right class behind it, sure or not."""
        if self.target.label is None:
            return Stopped(setting, None)
        true = int(self.target.label.argmax())
        found = [trial.recovery.class_index for trial in self._trials(setting)]
        hits = sum(index is not None and index == true for index in found)
        return Stopped(setting, Rate(hits, len(found)))

    def stops(self, sent: GradientShare, setting: float = 0.0) -> bool:
        """Whether the attacks fail on what is really sent, behind noise of this setting."""
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
        """Whether a class that is in the update is named: by the sums, or as that of one sample."""
        if self.target.classes & classes_named(self.subject, trial.sent, trial.setting):
            return True
        return LabelFinding(trial.recovery, 0.0).class_index in self.target.classes

    def _trials(self, setting: float) -> Iterator[_Trial]:
        """Every seed, recovered once however often it is asked for."""
        for seed in range(self.seeds):
            if (setting, seed) not in self.known:
                sent = self.make(setting, seed)(self.target.share.share)
                self.known[setting, seed] = _Trial(self, sent, setting)
            yield self.known[setting, seed]


@dataclass(frozen=True, eq=False)
class _Trial:
    """What was sent behind noise, and what the attack makes of its label, once it is asked for."""

    search: Search
    sent: GradientShare
    setting: float

    @cached_property
    def recovery(self) -> Recovery:
        """By all that is known of the share; behind noise it takes its time."""
        return recover(self.search.subject, [self.sent], self.search.options)[0]


def stronger(stopped: Stopped) -> Stopped:
    """The next setting of the grid, of which no trial was made."""
    return replace(stopped, setting=stopped.setting * FACTOR)


def root_mean_square(share: GradientShare) -> float:
    """The size of a share's entries."""
    total = sum(float(g.double().square().sum()) for g in share.values())
    return math.sqrt(total / max(sum(g.numel() for g in share.values()), 1)) or 1.0


def _from_first(grid: list[float], start: int, hidden: Callable[[float], bool]) -> list[float]:
    """The grid from the weakest setting that hides on; stronger ones are taken to hide as well.

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
