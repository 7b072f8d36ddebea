"""What would stop it: how leakage falls as a defence grows, and where each kind ends.

Success is scored against what the undefended share gave away, or the truth if it is known. Where
it ends the words are "this attack did not succeed": another attack may.

Leakage need not fall steadily: what a pruned share gives away can come back as more is pruned. So
every setting of the grid is tried, an end has no success beyond it, and bisection only narrows the
gap between the strongest setting that leaked and the next; failures before it are no end.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from softleak.audit.rates import Leak, Point, Rate, Response, WhatIf
from softleak.audit.run import Options, recover
from softleak.audit.shots import Shot, Target, walks
from softleak.audit.subject import Subject
from softleak.audit.sweeps import Sweep, sweeps
from softleak.results import Recovery

__all__ = ["Target", "Trial", "stages", "what_if"]

STEPS = 3  # of bisection, in the logarithm of the setting
INPUTS = 2  # shares whose input is attacked; with more seeds one for each, as it takes seconds


def what_if(
    subject: Subject,
    targets: Sequence[Target],
    options: Options,
    seeds: int,
    progress: Callable[[str], None] = lambda _: None,
) -> WhatIf:
    """Try every defence on every target; ``progress`` is told of each of the ``stages``."""
    norm = max(target.share.share.norm() for target in targets)
    responses = []
    for sweep in sweeps(norm):
        trial = Trial(subject, tuple(targets), options, sweep, seeds)
        responses.append(trial.response(progress))
    return WhatIf(tuple(responses), len(targets), seeds)


def stages() -> int:
    """How often ``what_if`` reports progress: at every setting, and once to narrow down ends."""
    return sum(len(sweep.every) + bool(sweep.settings) for sweep in sweeps(1.0))


@dataclass(frozen=True, eq=False)
class Trial:
    """One defence on all targets."""

    subject: Subject
    targets: tuple[Target, ...]
    options: Options
    sweep: Sweep
    seeds: int

    def response(self, progress: Callable[[str], None]) -> Response:
        """Every setting, then the end of each attack by bisection."""
        points: list[Point] = []
        for setting in self.sweep.every:
            progress(f"{self.sweep.name} {setting:.2g}" if self.sweep.unit else self.sweep.name)
            points.append(self.at(setting))
        if self.sweep.settings:
            progress(f"{self.sweep.name}: where attacks end")
        stops = {leak: end for leak in Leak if (end := self._end(points, leak)) is not None}
        return Response(self.sweep.name, self.sweep.unit, tuple(points), stops)

    def at(self, setting: float) -> Point:
        """How often each attack succeeds at one setting."""
        shots = self._shots(setting)
        hits: dict[Leak, list[bool]] = defaultdict(list)
        for scale in (
            None,
            "known",
            "unknown",
        ):  # those alike at once
            group = [shot for shot in shots if shot.options.scale == scale]
            for shot, recovery in zip(group, self._recover(group), strict=True):
                for leak in shot.aims:
                    hits[leak].append(shot.hits(leak, recovery, self._walks))
        return Point(setting, {leak: Rate(sum(h), len(h)) for leak, h in hits.items()})

    def succeeds(self, setting: float, leak: Leak) -> bool:
        """Whether one attack succeeds at all: no share is looked at beyond the first that leaks."""
        shots = (shot for shot in self._shots(setting) if leak in shot.aims)
        return any(shot.hits(leak, self._recover([shot])[0], self._walks) for shot in shots)

    @cached_property
    def _walks(self) -> tuple[Subject, ...]:
        return walks(self.subject) if self.options.inputs else ()

    def _shots(self, setting: float) -> list[Shot]:
        seeds = self.seeds if self.sweep.random else 1
        walked = max(INPUTS, seeds) if self._walks else 0
        inverted = {(n % seeds, n % len(self.targets)) for n in range(walked)}
        return [
            Shot.at(
                target, self.sweep.make(setting, seed), self.options, (seed, number) in inverted
            )
            for seed in range(seeds)
            for number, target in enumerate(self.targets)
        ]  # fmt: skip

    def _recover(self, shots: Sequence[Shot]) -> tuple[Recovery, ...]:
        if not shots:
            return ()
        return recover(self.subject, [shot.sent for shot in shots], shots[0].options)

    def _end(self, points: Sequence[Point], leak: Leak) -> float | None:
        """The weakest setting without a success, stronger ones having none either."""
        known = [point for point in points if leak in point.rates]
        gone = len(known)
        while gone and known[gone - 1].rates[leak].hits == 0:
            gone -= 1
        if gone == len(known):
            return None
        if gone == 0 or not self.sweep.settings:
            return known[gone].setting
        weak, strong = known[gone - 1].setting, known[gone].setting
        for _ in range(STEPS):
            middle = math.sqrt(weak * strong)
            if self.succeeds(middle, leak):
                weak = middle
            else:
                strong = middle
        return strong
