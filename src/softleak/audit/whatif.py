"""What would stop it: how leakage falls as a defence grows, and where each kind ends.

Success is scored against what the undefended share gave away, or the truth if it is known. Where
it ends the words are "this attack did not succeed": another attack may.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from softleak.audit.findings import RECOGNISABLE, AuditReport, InputFinding, LabelFinding
from softleak.audit.inputs import recover_input
from softleak.audit.rates import Leak, Point, Rate, Response, WhatIf
from softleak.audit.run import NamedShare, Options
from softleak.audit.subject import Subject
from softleak.audit.sweeps import Sweep, known_to_the_attacker, length, sweeps
from softleak.defenses import Defense
from softleak.labels.recover import recover_labels
from softleak.metrics import label_error, psnr
from softleak.results import Recovery
from softleak.share import GradientShare

CLOSE = 0.01  # L1: a label this close is the label
STEPS = 3  # of bisection, in the logarithm of the setting
INPUTS = 2  # shares whose input is attacked at every setting: seconds each
TRIED = (Leak.LABEL, Leak.CLASS, Leak.INPUT)


@dataclass(frozen=True, eq=False)
class Target:
    """A share, and what an attack on it has to reach."""

    share: NamedShare
    label: Tensor | None
    pixels: Tensor | None

    @classmethod
    def of(cls, share: NamedShare, report: AuditReport) -> Target:
        """By the truth if there is one, else by what the share gave away undefended."""
        recovery, score = report.label.recovery, report.score
        label = score.label_true if score and score.label_true is not None else recovery.label
        pixels = score.pixels_true if score and score.pixels_true is not None else None
        return cls(share, label, report.input.pixels if pixels is None else pixels)


def what_if(
    subject: Subject,
    targets: Sequence[Target],
    options: Options,
    seeds: int,
    progress: Callable[[str], None] = lambda _: None,
) -> WhatIf:
    """Try every defence on every target."""
    norm = max(length(target.share.share) for target in targets)
    responses = []
    for sweep in sweeps(norm):
        trial = Trial(subject, tuple(targets), options, sweep, seeds)
        responses.append(trial.response(progress))
    return WhatIf(tuple(responses), len(targets), seeds)


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
        tried = set(TRIED if self.options.inputs else TRIED[:2])
        for setting in self.sweep.every:
            progress(f"{self.sweep.name} {setting:.2g}")
            points.append(self.at(setting, frozenset(tried)))
            if Leak.INPUT in tried and _gone(points, Leak.INPUT):
                tried.discard(Leak.INPUT)  # an inversion takes seconds
        stops = {leak: end for leak in TRIED if (end := self._end(points, leak)) is not None}
        return Response(self.sweep.name, self.sweep.unit, tuple(points), stops)

    def at(self, setting: float, tried: frozenset[Leak]) -> Point:
        """How often each attack succeeds at one setting."""
        seeds = range(self.seeds if self.sweep.random else 1)
        shots = [
            Shot.at(target, self.sweep.make(setting, seed), self.options, seed == 0 and n < INPUTS)
            for seed in seeds
            for n, target in enumerate(self.targets)
        ]
        hits: dict[Leak, list[bool]] = defaultdict(list)
        for scale in ("known", "unknown"):  # at once, as what they have in common takes a while
            group = [shot for shot in shots if shot.options.scale == scale]
            for shot, recovery in zip(group, self._recover(group), strict=True):
                for leak, hit in shot.hits(self.subject, recovery, tried):
                    hits[leak].append(hit)
        return Point(setting, {leak: Rate(sum(h), len(h)) for leak, h in hits.items()})

    def _recover(self, shots: Sequence[Shot]) -> tuple[Recovery, ...]:
        if not shots:
            return ()
        return recover_labels(
            self.subject.model, [shot.sent for shot in shots], family=self.options.family,
            evidence=self.subject.relations, scale=shots[0].options.scale, head=self.subject.head,
            input_shape=self.subject.input_shape,
        )  # fmt: skip

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
            rate = self.at(middle, frozenset({leak})).rates.get(leak)
            weak, strong = (middle, strong) if rate and rate.hits else (weak, middle)
        return strong


@dataclass(frozen=True, eq=False)
class Shot:
    """One defended share, with what its attacker knows of it."""

    target: Target
    sent: GradientShare
    declared: GradientShare
    options: Options
    inverted: bool  # whether its input is attacked too

    @classmethod
    def at(cls, target: Target, defense: Defense, options: Options, inverted: bool) -> Shot:
        """A target behind a defence."""
        return cls(target, *known_to_the_attacker(defense, target.share.share, options), inverted)

    def hits(
        self, subject: Subject, recovery: Recovery, tried: frozenset[Leak]
    ) -> Iterator[tuple[Leak, bool]]:
        """Which attacks reached what they were to reach."""
        label, pixels = self.target.label, self.target.pixels
        claimed = LabelFinding(recovery, 0.0).class_index  # a guess that is right is no success
        if Leak.LABEL in tried and label is not None:
            near = claimed is not None and label_error(recovery, label) <= CLOSE
            yield Leak.LABEL, near
        if Leak.CLASS in tried and label is not None:
            yield Leak.CLASS, claimed == int(label.argmax())
        if Leak.INPUT in tried and self.inverted and pixels is not None:
            found = recover_input(subject, self.declared, recovery, self.options.normalisation)
            yield Leak.INPUT, _seen(found, pixels)


def _gone(points: Sequence[Point], leak: Leak) -> bool:
    """Whether an attack failed at the last setting in every trial."""
    rate = points[-1].rates.get(leak)
    return rate is None or rate.hits == 0


def _seen(found: InputFinding, pixels: Tensor) -> bool:
    if found.pixels is None or found.pixels.shape != pixels.shape:
        return False
    return psnr(found.pixels, pixels) >= RECOGNISABLE
