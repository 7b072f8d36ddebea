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
from itertools import chain, pairwise

from softleak.audit.defended import (
    InputReach,
    Target,
    Trial,
    fall_of,
    from_first,
    recover_together,
    walks,
)
from softleak.audit.input_attacks import embeddings
from softleak.audit.leaks import Leak
from softleak.audit.options import Options
from softleak.audit.sweeps import (
    Asked,
    LossFall,
    Point,
    Rate,
    Response,
    Sweep,
    Utility,
    WhatIf,
    mean_utility,
    sweeps,
    utility,
)
from softleak.bounds.hidden import Hiding, weakest_hiding
from softleak.core.client import Client
from softleak.core.share import LocalTraining
from softleak.core.subject import Subject
from softleak.defenses.defense import Defense, as_known


def end_of(
    points: Sequence[Point], leak: Leak, bisections: int, succeeds: Callable[[float], bool]
) -> float | None:
    """Return the weakest setting without a success, stronger ones having none either.

    None is returned if the attack succeeds at the strongest setting, or was not tried there. The
    points go from weak to strong; ``succeeds`` tells of settings between them, which are bisected
    in their logarithm.
    """
    gone = len(points)
    while gone and leak in points[gone - 1].rates and not points[gone - 1].rates[leak].hits:
        gone -= 1
    if gone == len(points):
        return None
    if gone == 0:
        return points[0].setting
    between = [points[gone - 1].setting, points[gone].setting]
    for _ in range(bisections):
        middles = [math.sqrt(weak * strong) for weak, strong in pairwise(between)]
        between = [*chain.from_iterable(zip(between, middles, strict=False)), between[-1]]
    hiding = from_first(between[1:-1], lambda setting: not succeeds(setting))
    return hiding[0] if hiding else between[-1]


def from_end(points: Sequence[Point], end: float) -> list[Point]:
    """Return the points at which a defence is at least as strong as at one setting."""
    grows = points[-1].setting >= points[0].setting
    return [p for p in points if (p.setting >= end if grows else p.setting <= end)]


BISECTIONS = 3  # steps of bisection, in the logarithm of the setting
SAME_NORM = 0.01  # the relative difference up to which two updates may be the same one
INPUT_SHARES = 2  # shares whose input is attacked; with more seeds one for each


def what_if(
    subject: Subject,
    targets: Sequence[Target],
    options: Options,
    seeds: int,
    progress: Callable[[str], None] = lambda _: None,
    asked: Asked | None = None,
) -> WhatIf:
    """Try the defences that are ``asked`` for, or the common ones, on every target.

    ``options`` are what the attacker knows. A random defence is tried with so many ``seeds``.
    ``progress`` is told of each of the ``stages``.
    """
    norm = max(target.share.share.norm() for target in targets)
    reaches = {id(target): InputReach(subject, target) for target in targets}
    responses = []
    for sweep in sweeps(norm, embeddings(subject), asked, subject.model):
        curve = ResponseCurve(subject, tuple(targets), options, sweep, seeds, reaches)
        responses.append(curve.response(progress))
    return WhatIf(tuple(responses), len(targets), seeds)


def hiding_of(
    subject: Subject, target: Target, options: Options, success: float, cosine: float
) -> Hiding | None:
    """Return which noise is proved to hide the label of a target's sample.

    None if the sample or its client is not known: neither told nor recovered, or the update is not
    what the client would have sent.
    """
    share, shape, norm = target.share.share, subject.tensor_shape, options.normalisation
    x = target.input if target.input is not None or norm is None or target.pixels is None else (
        norm.apply(target.pixels)
    )  # fmt: skip
    if target.label is None or x is None or shape is None or target.samples:
        return None
    training = share.made_by or LocalTraining()
    client = Client(**vars(training.training), loss=target.loss)
    if client.unknowns:
        return None
    x, noise = x.reshape(shape).float(), options.knowledge.noise
    own = client.share(subject.model, x, target.label).norm()
    if not noise and abs(own - share.norm()) > SAME_NORM * own:
        return None
    return weakest_hiding(
        subject.model, x, target.label, client=client, target=success, cosine=cosine, noise=noise
    )


def stages(subject: Subject, asked: Asked | None = None) -> int:
    """Return how often ``what_if`` reports progress: at every setting, and once per bisection."""
    tried = sweeps(1.0, embeddings(subject), asked, subject.model)
    return sum(len(sweep.every) + bool(sweep.settings) for sweep in tried)


@dataclass(frozen=True, eq=False)
class ResponseCurve:
    """One defence on all targets, over its settings."""

    subject: Subject
    targets: tuple[Target, ...]
    options: Options
    sweep: Sweep
    seeds: int
    reaches: Mapping[int, InputReach] = field(default_factory=dict)  # by identity of a target
    known: dict[float, list[Trial]] = field(default_factory=dict, init=False)  # by setting

    def response(self, progress: Callable[[str], None]) -> Response:
        """Try every setting, then find the end of each attack by bisection."""
        points: list[Point] = []
        for setting in self.sweep.every:
            progress(f"{self.sweep.name} {setting:.2g}" if self.sweep.unit else self.sweep.name)
            points.append(self.at(setting))
        if self.sweep.settings:
            progress(f"{self.sweep.name}: where attacks end")
        ends = {
            leak: end_of(points, leak, BISECTIONS, partial(self.succeeds, leak=leak))
            for leak in Leak
        }
        stops = {leak: end for leak, end in ends.items() if end is not None}
        left = {leak: self._left(end) for leak, end in stops.items()}
        unclaimed = points[-1].unclaimed
        if (end := stops.get(Leak.LABEL)) is not None:
            beyond = (point.unclaimed for point in from_end(points, end))
            unclaimed = max(self._unclaimed(end), *beyond)
        sweep = self.sweep
        return Response(
            sweep.name, sweep.unit, tuple(points), stops, left, unclaimed, sweep.terms
        )  # fmt: skip

    def at(self, setting: float) -> Point:
        """Return how often each attack succeeds at one setting."""
        trials = self.trials(setting)
        recover_together([trial for trial in trials if trial.aims])
        hits: dict[Leak, list[bool]] = defaultdict(list)
        failed: set[Leak] = set()  # of an attack that took what was sent for something else
        for trial in trials:
            for leak in trial.aims:
                hits[leak].append(trial.hits(leak, self._walks))
                failed |= set() if hits[leak][-1] or trial.attacked(leak) else {leak}
        tried = [leak for leak in Leak if any(hits[leak]) or (hits[leak] and leak not in failed)]
        rates = {leak: Rate(sum(hits[leak]), len(hits[leak])) for leak in tried}
        return Point(setting, rates, self._left(setting), self._unclaimed(setting))

    def succeeds(self, setting: float, leak: Leak) -> bool:
        """Return whether one attack succeeds on any share, or would not have been one.

        It ends with the first that leaks.
        """
        trials = self.trials(setting)
        aimed = [trial for trial in trials if leak in trial.aims]
        found = any(one.hits(leak, self._walks) or not one.attacked(leak) for one in aimed)
        for trial in trials:
            trial.forget()
        return found

    def trials(self, setting: float) -> list[Trial]:
        """Return the trials of a setting: every seed with every target."""
        if setting in self.known:
            return self.known[setting]
        seeds = self.seeds if self.sweep.random else 1
        walked = max(INPUT_SHARES, seeds) if self.options.inputs else 0
        inverted = {(n % seeds, n % len(self.targets)) for n in range(walked)}
        self.known[setting] = [
            self._trial(target, self.sweep.make(setting, seed), (seed, number) in inverted)
            for seed in range(seeds)
            for number, target in enumerate(self.targets)
        ]
        return self.known[setting]

    def _trial(self, target: Target, defense: Defense, inputs: bool) -> Trial:
        """Return a target behind a defence; its input is attacked too if that is asked for."""
        reach = self.reaches.get(id(target))
        made = behind(self.subject, target, defense, self.options, reach)
        # Every attack needs the head's gradient. Where it is withheld, none is tried.
        if self.subject.head.weight_name not in made.sent:
            return made
        seen = self._walks or (reach is not None and reach.estimate is not None)
        told = target.label is not None or target.samples
        aims = {Leak.LABEL, Leak.CLASS} if told else set()
        if inputs and seen and (target.pixels is not None or target.tokens):
            aims.add(Leak.INPUT)
        return replace(made, aims=frozenset(aims))

    def _unclaimed(self, setting: float) -> int:
        """Return in how many trials of a setting the best label is right, but not claimed."""
        trials = (trial for trial in self.trials(setting) if Leak.LABEL in trial.aims)
        return sum(trial.nearly for trial in trials)

    def _left(self, setting: float) -> Utility:
        """Return what is left of the updates at a setting, on average."""
        falls = {id(target): fall for target, fall in zip(self.targets, self._falls, strict=True)}
        found = []
        for trial in self.trials(setting):
            true = trial.target.share.share
            found.append(utility(true, trial.sent, falls[id(trial.target)]))
            trial.forget()
        return mean_utility(found)

    @cached_property
    def _falls(self) -> tuple[LossFall | None, ...]:
        """How a step changes the loss of each target's own sample, where the sample is known."""
        return tuple(fall_of(self.subject, target, self.options) for target in self.targets)

    @cached_property
    def _walks(self) -> tuple[Subject, ...]:
        return walks(self.subject) if self.options.inputs else ()


def behind(
    subject: Subject,
    target: Target,
    defense: Defense,
    options: Options,
    reach: InputReach | None = None,
) -> Trial:
    """Return a target behind a defence that its receiver knows."""
    return Trial(
        subject, target, lambda: defense(target.share.share), options,
        lambda sent: (as_known(defense, sent),), reach,
    )  # fmt: skip
