"""The weakest noise that stops the attack on one share: what-if, for a client in a hurry.

Settings are in units of the share's own root mean square, so that a learning rate nobody said does
no harm. Success is scored against what the undefended share gave away. Where it ends the words are
"this attack did not succeed": another attack may.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from softleak.audit.findings import AuditReport
from softleak.audit.rates import Leak, Rate
from softleak.audit.run import NamedShare, Options
from softleak.audit.subject import Subject
from softleak.audit.whatif import Shot, Target
from softleak.defenses import Defense, GaussianNoise
from softleak.defenses.noise import Source
from softleak.errors import OptionError
from softleak.labels.recover import recover_label
from softleak.results import Recovery
from softleak.share import GradientShare

POWERS = range(-12, 10)  # of FACTOR: noise from far below the share's entries to far above
FACTOR = 2.0
STOPPABLE = frozenset({Leak.LABEL, Leak.CLASS, Leak.INPUT})
Make = Callable[[float, Source], Defense]


@dataclass(frozen=True)
class Stopped:
    """A setting at which the attack succeeded in no trial, and how often it still named the class.

    ``guesses`` counts every right class, also those the attack was not sure of.
    """

    setting: float
    guesses: Rate

    @property
    def class_bound(self) -> float:
        """What the class accuracy of this attack stays below, by Wilson's interval of 95 %."""
        return self.guesses.interval[1]


@dataclass(frozen=True, eq=False)
class Search:
    """Tries noise on one share until the attacks named by ``leaks`` fail."""

    subject: Subject
    target: Target
    options: Options
    leaks: frozenset[Leak]
    seeds: int = 3
    make: Make = GaussianNoise

    def __post_init__(self) -> None:
        if not self.leaks or self.leaks - STOPPABLE:
            names = ", ".join(sorted(leak.value for leak in STOPPABLE))
            raise OptionError(f"expected some of {names} to be stopped, got {self.leaks or 'none'}")
        if self.seeds < 1:
            raise OptionError(f"expected one trial or more, got {self.seeds}")

    @classmethod
    def of(
        cls,
        subject: Subject,
        share: GradientShare,
        report: AuditReport,
        options: Options,
        leaks: frozenset[Leak],
        seeds: int,
    ) -> Search:
        """A search on a share that was audited undefended."""
        return cls(subject, Target.of(NamedShare("", share), report), options, leaks, seeds)

    def weakest(self) -> Stopped | None:
        """The weakest setting of the grid that stops everything; None if the strongest does not.

        Labels take less time to attack than inputs and more noise to hide, so they go first.
        """
        unit = root_mean_square(self.target.share.share)
        grid = [unit * FACTOR**power for power in POWERS]
        names = self.leaks - {Leak.INPUT}
        first = _bisect(grid, lambda setting: self._names_hidden(setting, names)) if names else 0
        grid = grid[first:]
        if Leak.INPUT in self.leaks and grid and not self._input_hidden(grid[0]):
            grid = grid[_bisect(grid[1:], self._input_hidden) + 1 :]
        return Stopped(grid[0], self.guesses(grid[0])) if grid else None

    def stops(self, sent: GradientShare) -> bool:
        """Whether the attacks fail on what is really sent."""
        return not self._hit(sent, self.leaks)

    def guesses(self, setting: float) -> Rate:
        """How often the attack names the right class, sure or not."""
        label = self.target.label
        true = None if label is None else int(label.argmax())
        found = [self._recover(sent).class_index for sent in self._sent(setting)]
        return Rate(sum(index is not None and index == true for index in found), len(found))

    def _names_hidden(self, setting: float, leaks: frozenset[Leak]) -> bool:
        return not any(self._hit(sent, leaks) for sent in self._sent(setting))

    def _input_hidden(self, setting: float) -> bool:
        first = next(iter(self._sent(setting)))  # an inversion takes seconds
        return not self._hit(first, frozenset({Leak.INPUT}))

    def _sent(self, setting: float) -> Iterable[GradientShare]:
        share = self.target.share.share
        return (self.make(setting, seed)(share) for seed in range(self.seeds))

    def _hit(self, sent: GradientShare, leaks: frozenset[Leak]) -> bool:
        shot = Shot(self.target, sent, sent, self.options, inverted=True)
        return any(hit for _, hit in shot.hits(self.subject, self._recover(sent), leaks))

    def _recover(self, sent: GradientShare) -> Recovery:
        return recover_label(
            self.subject.model, sent, family=self.options.family, evidence=self.subject.relations,
            scale=self.options.scale, head=self.subject.head, input_shape=self.subject.input_shape,
        )  # fmt: skip


def stronger(stopped: Stopped) -> Stopped:
    """The next setting of the grid, of which no trial was made."""
    return replace(stopped, setting=stopped.setting * FACTOR)


def root_mean_square(share: GradientShare) -> float:
    """The size of a share's entries."""
    total = sum(float(g.double().square().sum()) for g in share.values())
    return math.sqrt(total / max(sum(g.numel() for g in share.values()), 1)) or 1.0


def _bisect(grid: list[float], hidden: Callable[[float], bool]) -> int:
    """The index of the first setting that hides, stronger ones taken to; the length if none."""
    low, high = 0, len(grid)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if hidden(grid[middle]) else (middle + 1, high)
    return low
