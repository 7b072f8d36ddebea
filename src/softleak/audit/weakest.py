"""Search clipping, pruning and noise together for the least loss of utility.

Each treatment wants the weakest noise that stops the attacks behind it. A treatment that could only
be worse than the best one so far is not tried: what it leaves of the update is known beforehand.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice

from softleak.audit.leaks import Leak
from softleak.audit.options import Options
from softleak.audit.report import AuditReport
from softleak.audit.run import NamedShare
from softleak.audit.sweeps import PLAIN, TREATMENTS, Rate, Treatment, Utility, mean_utility, utility
from softleak.audit.whatif import (
    InputReach,
    Target,
    Trial,
    classes_named,
    from_first,
    walks,
)
from softleak.core.errors import OptionError
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.defenses.defense import Defense, GaussianNoise, OnKept, Source

# The grid of noise that is tried.
GRID_POWERS = range(-12, 12)  # of the factor, in units of the root mean square of the share
GRID_FACTOR = 2.0  # between one setting and the next
GRID_CLASS_START = 16  # the place in the grid where looking for a hidden class begins
GRID_INPUT_START = 14  # the place in the grid where looking for a hidden input begins
INPUT_TRIALS = 1  # an inversion takes seconds, so that one trial of a setting has to do

INPUTS = frozenset({Leak.INPUT})
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
    """A setting without a success, and how often the class was still named there."""

    setting: float  # the standard deviation of the noise
    # How often the right class was named, sure or not; None if there is no single class to guess,
    # because the update is of several samples.
    guesses: Rate | None
    treatment: Treatment = PLAIN  # what was done to the share before the noise
    utility: Utility | None = None  # what is left of the update, if it was measured

    @property
    def class_bound(self) -> float:
        """Return the upper end of Wilson's interval of 95 % for how often the class is named."""
        return 1.0 if self.guesses is None else self.guesses.interval[1]


@dataclass(frozen=True, eq=False)
class Search:
    """Try noise on one share until the attacks named by ``leaks`` fail."""

    subject: Subject  # the model with the weights that the client received
    target: Target  # the share, and what an attack on it has to reach
    options: Options  # what the attacker knows
    leaks: frozenset[Leak]  # what must not happen
    seeds: int = 3  # the number of trials for each setting
    make: Make = GaussianNoise  # makes the noise of a standard deviation and a source
    treatment: Treatment = PLAIN  # what is done to the share before the noise
    reach: InputReach | None = None  # what could be estimated of the input; None walks alone
    known: dict[tuple[float, int], Trial] = field(default_factory=dict, init=False)  # so far

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
        target = Target.of(NamedShare("", share), report)
        reach = InputReach(subject, target)
        return cls(subject, target, options, leaks, seeds, make, reach=reach)

    @cached_property
    def prepared(self) -> GradientShare:
        """The share as the treatment leaves it, before any noise."""
        return self.treatment(self.target.share.share)

    def send(self, setting: float, source: Source) -> GradientShare:
        """Return what is sent behind noise of this setting."""
        noise = self.make(setting, source)
        return (OnKept(noise) if self.treatment.prunes else noise)(self.prepared)

    @cached_property
    def grid(self) -> list[float]:
        """The settings to try, from weak to strong, in units of what the treatment leaves."""
        unit = root_mean_square(self.prepared)
        return [unit * GRID_FACTOR**power for power in GRID_POWERS]

    def weakest(self, within: int | None = None) -> Stopped | None:
        """Return the weakest setting that stops everything, of all or of the first ``within``.

        What is within reach is known in a moment, so that goes first. Labels take less time to
        attack than inputs by a walk, and mostly more noise to hide, so they follow.
        """
        grid: Sequence[float] = self.grid[:within]
        narrowed = self.reach is not None and bool(self.leaks & INPUTS)
        if narrowed:
            grid = from_first(grid, lambda setting: not self._reached(setting), GRID_INPUT_START)
        if names := self.leaks - INPUTS:
            start = 0 if narrowed else GRID_CLASS_START
            grid = from_first(grid, lambda setting: not self._hit(setting, names), start)
        if self.leaks & INPUTS:
            grid = from_first(grid, lambda setting: not self._hit(setting, INPUTS, INPUT_TRIALS), 0)
        return self.at(grid[0]) if grid else None

    def at(self, setting: float) -> Stopped:
        """Return how often the attack names the right class behind a setting, sure or not."""
        trials, guesses = list(self._trials(setting)), None
        true = self.target.share.share
        left = mean_utility([utility(true, trial.sent) for trial in trials])
        if self.target.label is not None:
            guesses = Rate(sum(trial.guessed for trial in trials), len(trials))
        return Stopped(setting, guesses, self.treatment, left)

    def stops(self, sent: GradientShare, setting: float = 0.0) -> bool:
        """Return whether the attacks fail on what is really sent, behind noise of this setting."""
        return not self._leaks(self._trial(setting, lambda: sent), setting, self.leaks)

    def hit(self, setting: float) -> bool:
        """Return whether an attack succeeds in a trial of this setting."""
        names, inputs = self.leaks - INPUTS, self.leaks & INPUTS
        if inputs and self._reached(setting):
            return True
        return self._hit(setting, names) or self._hit(setting, inputs, INPUT_TRIALS)

    def _hit(self, setting: float, leaks: frozenset[Leak], trials: int | None = None) -> bool:
        return bool(leaks) and any(
            self._leaks(trial, setting, leaks) for trial in islice(self._trials(setting), trials)
        )

    def _reached(self, setting: float) -> bool:
        """Return whether the input is within reach in a trial of this setting."""
        return any(trial.reached for trial in islice(self._trials(setting), INPUT_TRIALS))

    def _leaks(self, trial: Trial, setting: float, leaks: frozenset[Leak]) -> bool:
        if leaks not in trial.answers:
            trial.answers[leaks] = self._attacked(trial, setting, leaks)
        return trial.answers[leaks]

    def _attacked(self, trial: Trial, setting: float, leaks: frozenset[Leak]) -> bool:
        """Return whether an attack that is carried out, or an estimate of one, succeeds."""
        if Leak.COMPOSITION in leaks and self._composed(trial, setting):
            return True
        if self.target.label is None and self.target.pixels is None:
            return False  # there is nothing to reach, and attacks on labels take their time
        names = leaks & {Leak.LABEL, Leak.CLASS}
        if any(trial.names(leak) for leak in names):
            return True
        # How sure an attack is says little behind pruning, so a right guess counts there.
        wary = Leak.CLASS in names and self.treatment.prunes
        if wary and (trial.guessed or self._composed(trial, setting)):
            return True
        if Leak.INPUT not in leaks:
            return False
        return trial.reached or trial.sees(walks(self.subject), believed=True)

    def _composed(self, trial: Trial, setting: float) -> bool:
        """Return whether an attack names a class that is in the update."""
        named = classes_named(self.subject, trial.sent, setting) | trial.left
        return bool(self.target.classes & named) or trial.claimed in self.target.classes

    def _trials(self, setting: float) -> Iterator[Trial]:
        """Yield the trial of every seed; each is made once, however often it is asked for."""
        for seed in range(self.seeds):
            if (setting, seed) not in self.known:
                send = partial(self.send, setting, seed)
                self.known[setting, seed] = self._trial(setting, send)
            yield self.known[setting, seed]

    def _trial(self, setting: float, send: Callable[[], GradientShare]) -> Trial:
        views = partial(self.treatment.views, noise=setting)
        return Trial(self.subject, self.target, send, self.options, views, self.reach)


def root_mean_square(share: GradientShare) -> float:
    """Return the size of a share's entries."""
    total = sum(float(g.double().square().sum()) for g in share.values())
    return math.sqrt(total / max(sum(g.numel() for g in share.values()), 1)) or 1.0


def least_loss(search: Search, treatments: Sequence[Treatment] = TREATMENTS) -> Stopped | None:
    """Return the treatment and noise that stop everything and leave the most; None if none do."""
    best: Stopped | None = None
    most = 0.0  # the progress that is left behind the best, on average over the noise
    for treatment in treatments:
        tried = treated(search, treatment)
        within = len(tried.grid) if best is None else _better(tried, most)
        # The strongest noise that would still be better is tried first. If the attacks succeed
        # behind it, they do behind all weaker ones.
        if best is not None and (within == 0 or tried.hit(tried.grid[within - 1])):
            continue
        found = tried.weakest(within)
        left = 0.0 if found is None else expected_progress(tried, found.setting)
        if found is not None and (best is None or left > most):
            best, most = found, left
    return best


def treated(search: Search, treatment: Treatment) -> Search:
    """Return the search behind another treatment."""
    return replace(search, treatment=treatment)


def expected_progress(search: Search, setting: float) -> float:
    """Return the progress that is left behind noise of a setting, on average over the noise.

    Noise adds to the length of what is sent, and nothing along the true update.
    """
    true, left = search.target.share.share, search.prepared
    whole = true.norm()
    along = sum(float((g.double() * left[n].double()).sum()) for n, g in true.items())
    noisy = sum(
        int((g != 0).sum()) if search.treatment.prunes else g.numel() for g in left.values()
    )
    length = math.sqrt(left.norm() ** 2 + setting**2 * noisy)
    return along / (whole * max(whole, length)) if whole > 0 else 0.0


def _better(search: Search, progress: float) -> int:
    """Return how many settings of the grid leave more progress than this, the weakest first."""
    return bisect_left(search.grid, True, key=lambda s: expected_progress(search, s) <= progress)
