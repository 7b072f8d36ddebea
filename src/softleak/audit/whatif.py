"""Say what would stop an attack, and how leakage falls as a defence grows.

Success is scored against what the undefended share gave away, or the truth if it is known. Where
it ends the words are "this attack did not succeed": another attack may.

An input counts as given away if a walk brings it, or if an estimate of the best attack's error
puts it within reach: matching gradients at every setting would take hours.

Every setting of the grid is tried, because leakage need not fall steadily.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from softleak.audit.defended import InputReach, Shot, Target, fall_of, walks
from softleak.audit.input_attacks import embeddings
from softleak.audit.options import Options
from softleak.audit.rates import (
    LossFall,
    Point,
    Rate,
    Response,
    Utility,
    WhatIf,
    mean_utility,
    utility,
)
from softleak.audit.sweeps import Asked, Sweep, sweeps
from softleak.core.results import Recovery
from softleak.core.subject import Subject
from softleak.core.vocabulary import Leak
from softleak.labels.recover import recover


def end_of(
    points: Sequence[Point], leak: Leak, bisections: int, succeeds: Callable[[float], bool]
) -> float | None:
    """Return the weakest setting without a success, stronger ones having none either.

    Args:
        points: how often attacks succeeded, from the weakest setting to the strongest.
        leak: the attack.
        bisections: the steps of bisection, in the logarithm of the setting.
        succeeds: says whether the attack succeeds at a setting that is no point.

    Returns:
        The setting; None if the attack succeeds at the strongest one, or was not tried.
    """
    known = [point for point in points if leak in point.rates]
    gone = len(known)
    while gone and known[gone - 1].rates[leak].hits == 0:
        gone -= 1
    if gone == len(known):
        return None
    if gone == 0:
        return known[0].setting
    weak, strong = known[gone - 1].setting, known[gone].setting
    for _ in range(bisections):
        middle = math.sqrt(weak * strong)
        weak, strong = (middle, strong) if succeeds(middle) else (weak, middle)
    return strong


def from_end(points: Sequence[Point], end: float) -> list[Point]:
    """Return the points at which a defence is at least as strong as at one setting."""
    grows = points[-1].setting >= points[0].setting
    return [p for p in points if (p.setting >= end if grows else p.setting <= end)]


@dataclass(frozen=True)
class TrialSettings:
    """Settings that bound the work of a trial."""

    bisections: int = 3  # steps of bisection, in the logarithm of the setting
    inputs: int = 2  # shares whose input is attacked; with more seeds one for each


TRIAL = TrialSettings()


def what_if(
    subject: Subject,
    targets: Sequence[Target],
    options: Options,
    seeds: int,
    progress: Callable[[str], None] = lambda _: None,
    asked: Asked | None = None,
) -> WhatIf:
    """Try defences on every target; ``progress`` is told of each of the ``stages``.

    Args:
        subject: the model.
        targets: the shares, and what an attack on each has to reach.
        options: what the attacker knows.
        seeds: the number of trials of a random defence.
        progress: is told what is tried.
        asked: which defences are tried; the common ones if it is None.
    """
    norm = max(target.share.share.norm() for target in targets)
    reaches = {id(target): InputReach(subject, target) for target in targets}
    responses = []
    for sweep in sweeps(norm, embeddings(subject), asked, subject.model):
        trial = Trial(subject, tuple(targets), options, sweep, seeds, reaches)
        responses.append(trial.response(progress))
    return WhatIf(tuple(responses), len(targets), seeds)


def stages(subject: Subject, asked: Asked | None = None) -> int:
    """Return how often ``what_if`` reports progress: at every setting, and once per bisection."""
    tried = sweeps(1.0, embeddings(subject), asked, subject.model)
    return sum(len(sweep.every) + bool(sweep.settings) for sweep in tried)


@dataclass(frozen=True, eq=False)
class Trial:
    """Try one defence on all targets."""

    subject: Subject
    targets: tuple[Target, ...]
    options: Options
    sweep: Sweep
    seeds: int
    reaches: Mapping[int, InputReach] = field(default_factory=dict)  # by identity of a target
    known: dict[tuple[float, int], Recovery] = field(default_factory=dict)  # by setting and shot

    def response(self, progress: Callable[[str], None]) -> Response:
        """Try every setting, then find the end of each attack by bisection."""
        points: list[Point] = []
        for setting in self.sweep.every:
            progress(f"{self.sweep.name} {setting:.2g}" if self.sweep.unit else self.sweep.name)
            points.append(self.at(setting))
        if self.sweep.settings:
            progress(f"{self.sweep.name}: where attacks end")
        stops = {leak: end for leak in Leak if (end := self._end(points, leak)) is not None}
        left = {leak: self._left(self._shots(end)) for leak, end in stops.items()}
        unclaimed = points[-1].unclaimed
        if (end := stops.get(Leak.LABEL)) is not None:
            there = self._unclaimed(end, self._shots(end))
            unclaimed = max(there, *(point.unclaimed for point in from_end(points, end)))
        return Response(self.sweep.name, self.sweep.unit, tuple(points), stops, left, unclaimed)

    def _end(self, points: Sequence[Point], leak: Leak) -> float | None:
        return end_of(points, leak, TRIAL.bisections, partial(self.succeeds, leak=leak))

    def at(self, setting: float) -> Point:
        """Return how often each attack succeeds at one setting."""
        shots = list(enumerate(self._shots(setting)))
        for scale in (None, "known", "unknown"):  # those alike at once
            group = [(n, s) for n, s in shots if s.aims and s.options.knowledge.scale == scale]
            for (number, _), found in zip(group, self._recover([s for _, s in group]), strict=True):
                self.known[setting, number] = found
        hits: dict[Leak, list[bool]] = defaultdict(list)
        for number, shot in shots:
            for leak in shot.aims:
                hits[leak].append(self._hits(setting, number, shot, leak))
        rates = {leak: Rate(sum(h), len(h)) for leak, h in hits.items()}
        plain = [shot for _, shot in shots]
        return Point(setting, rates, self._left(plain), self._unclaimed(setting, plain))

    def _unclaimed(self, setting: float, shots: Sequence[Shot]) -> int:
        """Return in how many trials of a setting the best label is right, but not claimed."""
        return sum(
            shot.nearly(self._recovery(setting, number, shot))
            for number, shot in enumerate(shots)
            if Leak.LABEL in shot.aims and shot.target.label is not None
        )

    def _left(self, shots: Sequence[Shot]) -> Utility:
        """Return what is left of the updates, on average."""
        falls = {id(target): fall for target, fall in zip(self.targets, self._falls, strict=True)}
        return mean_utility(
            [utility(s.target.share.share, s.sent, falls[id(s.target)]) for s in shots]
        )

    @cached_property
    def _falls(self) -> tuple[LossFall | None, ...]:
        """How a step changes the loss of each target's own sample, where the sample is known."""
        return tuple(fall_of(self.subject, target, self.options) for target in self.targets)

    def succeeds(self, setting: float, leak: Leak) -> bool:
        """Return whether one attack succeeds on any share; it ends with the first that leaks."""
        return any(
            self._hits(setting, number, shot, leak)
            for number, shot in enumerate(self._shots(setting))
            if leak in shot.aims
        )

    def _recovery(self, setting: float, number: int, shot: Shot) -> Recovery:
        """Return what is recovered from one shot of a setting, once for all kinds of leak."""
        if (setting, number) not in self.known:
            self.known[setting, number] = self._recover([shot])[0]
        return self.known[setting, number]

    def _hits(self, setting: float, number: int, shot: Shot, leak: Leak) -> bool:
        """Return whether one attack succeeds: on a sample of several, or on the only one."""
        if shot.target.samples and leak is not Leak.INPUT:
            return shot.finds(leak, self.subject)
        reach = self.reaches.get(id(shot.target)) if leak is Leak.INPUT else None
        if reach is not None and reach.shows(shot.sent):
            return True
        return shot.hits(leak, self._recovery(setting, number, shot), self._walks)

    @cached_property
    def _walks(self) -> tuple[Subject, ...]:
        return walks(self.subject) if self.options.inputs else ()

    def _seen(self, target: Target) -> bool:
        """Return whether the input of a target can be attacked, or its reach be estimated."""
        reach = self.reaches.get(id(target))
        return bool(self._walks) or (reach is not None and reach.estimate is not None)

    def _shots(self, setting: float) -> list[Shot]:
        seeds = self.seeds if self.sweep.random else 1
        walked = max(TRIAL.inputs, seeds) if self.options.inputs else 0
        inverted = {(n % seeds, n % len(self.targets)) for n in range(walked)}
        shots = [
            Shot.at(
                target, self.sweep.make(setting, seed), self.options,
                (seed, number) in inverted and self._seen(target),
            )
            for seed in range(seeds)
            for number, target in enumerate(self.targets)
        ]  # fmt: skip
        # Every attack needs the head's gradient. Where it is withheld, none is tried.
        head = self.subject.head.weight_name
        return [s if head in s.sent else replace(s, aims=frozenset()) for s in shots]

    def _recover(self, shots: Sequence[Shot]) -> tuple[Recovery, ...]:
        if not shots:
            return ()
        return recover(self.subject, [shot.sent for shot in shots], shots[0].options.knowledge)
