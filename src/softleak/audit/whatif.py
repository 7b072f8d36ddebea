"""Attack shares behind defences, and say what would stop an attack.

A trial is one share behind a defence at one setting. A curve tries every setting of a grid, because
leakage need not fall steadily; ``audit.weakest`` looks for the weakest noise that a guard may send.

Success is scored by the truth, else by what leaked undefended. Where it ends the words are "this
attack did not succeed": another attack may. An input counts as given away if a walk brings it, or
if an estimate of the best attack's error puts it within reach: matching gradients at every setting
would take hours.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, pairwise, product

import torch
from torch import Tensor

from softleak.audit.input_attacks import embeddings, recover_input
from softleak.audit.leaks import Leak
from softleak.audit.metrics import label_error, psnr
from softleak.audit.options import Options
from softleak.audit.reach import NoiseReach
from softleak.audit.report import (
    LEAK_RECOGNISABLE,
    AuditReport,
    InputFinding,
    class_of,
    listed,
    proved_of,
)
from softleak.audit.run import NamedShare
from softleak.audit.sweeps import (
    Asked,
    Fall,
    Point,
    Rate,
    Response,
    Sweep,
    Utility,
    WhatIf,
    loss_fall,
    mean_utility,
    sweeps,
    utility,
)
from softleak.batches.recover import read_batch
from softleak.bounds.hidden import Hiding, weakest_hiding
from softleak.core.client import Client
from softleak.core.errors import ModelError, SoftleakError
from softleak.core.factors import head_gradients
from softleak.core.input_spec import Normalisation
from softleak.core.loss import CROSS_ENTROPY, Loss
from softleak.core.results import Recovery
from softleak.core.share import GradientShare, LocalTraining
from softleak.core.subject import Subject
from softleak.defenses.defense import Defense, as_known
from softleak.inversion.chain import Chain, chain_of
from softleak.inversion.results import Certainty, NoWay, Text
from softleak.labels.composition import BatchReader
from softleak.labels.recover import recover

NAMED_Z = 3.0  # standard deviations below zero at which an attacker takes a class for proved


def classes_named(subject: Subject, sent: GradientShare, noise: float) -> frozenset[int]:
    """Return the classes read off a share whose entries carry noise of this standard deviation."""
    try:
        reader = subject.once(BatchReader.of)
    except Exception:  # it runs the model, whose own code may raise anything
        return frozenset()
    named = set(reader.read(sent.expecting(noise)).raised)
    for sums, size in _sums(reader, sent):
        named |= set((sums < -NAMED_Z * noise * size).nonzero()[:, 0].tolist())
    return frozenset(named)


def _sums(reader: BatchReader, sent: GradientShare) -> list[tuple[Tensor, Tensor]]:
    """Return sums (C,) that only classes in the update make negative, and the size of their noise.

    The bias's gradient is one. If no feature is negative, the rows of the weight's gradient are
    others, best added up as the usual feature has it; and so are both together. Entries that were
    not sent are zero and carry no noise.
    """
    head = reader.head
    (G,) = head_gradients(head, [sent])
    biased = head.has_bias and head.bias_name in sent
    delta = sent[head.bias_name].double().cpu() if biased else None
    alone = [] if delta is None else [(delta, torch.ones(()))]
    if not reader.never_negative:
        return alone
    usual = reader.features.mean(0).cpu()
    weight = G.double().cpu()
    square = (weight != 0).to(usual) @ usual.square()
    rows = weight @ usual
    both = [] if delta is None else [(rows + delta, (square + 1).sqrt())]
    return [*alone, (rows, square.sqrt()), *both]


def classes_left(subject: Subject, true: GradientShare, sent: GradientShare) -> frozenset[int]:
    """Return the classes read off the entries that a compression left; none if none is missing.

    Whoever removes or rounds entries leaves their signs; and as ``|p_y − 1| = Σ p_j`` over the
    other classes, most of what is left of one sample is its own class's, whatever noise is on it.
    """
    head = subject.head
    name = head.bias_name if head.has_bias and head.bias_name in sent else head.weight_name
    seen, left = (share[name].double().cpu().reshape(head.classes, -1) for share in (true, sent))
    ((G,), (H,)) = (head_gradients(head, [share]) for share in (true, sent))
    if not bool(((H == 0) & (G != 0)).any() or ((left == 0) & (seen != 0)).any()):
        return frozenset()
    if not bool(left.any()):
        left = H.double().cpu()
    order = (left != 0).sum(1) + left.abs().sum(1) / max(float(left.abs().sum()), TINY) / 2
    named = {int(order.argmax())} if bool(left.any()) else set()
    with suppress(Exception):  # it runs the model, whose own code may raise anything
        raised = subject.once(BatchReader.of).read(sent, left=TINY).raised
        named |= set(raised if len(raised) == 1 else ())
    return frozenset(named)


# What decides whether an attack on a defended share succeeded.
TINY = 1e-300  # the error of an entry that a compression left
LIKELY_CLASS = 0.5  # the probability at which the best class counts as given away
LIKELY_CHANCES = 1.5  # and how many times that of a guess it has to be, at least
SUCCESS_LABEL_ERROR = 0.01  # L1: a label this close is the label
SUCCESS_WORDS = 0.5  # the part of a text's words that is claimed, and right, in their places
SUCCESS_WALK_GAIN = 5.0  # dB: no thorough walk was seen to gain more on a quick one


@dataclass(frozen=True, eq=False)
class Target:
    """A share, and what an attack on it has to reach."""

    share: NamedShare
    label: Tensor | None
    pixels: Tensor | None
    classes: frozenset[int] = frozenset()  # that an attack may name as being in the update
    tokens: tuple[int | None, ...] = ()  # of a text
    samples: tuple[Tensor, ...] = ()  # the labels that were proved of an update of several
    to_pixels: Normalisation | None = None  # how the input became pixels
    loss: Loss = CROSS_ENTROPY  # that the label belongs to

    @classmethod
    def of(cls, share: NamedShare, report: AuditReport) -> Target:
        """Return the target by the truth if there is one, else by what leaked undefended."""
        found, score = report.input, report.score
        own = report.label.recovery
        label = own.label if proved_of(own) != "NOTHING" else None
        pixels = found.pixels if found.leaked else None
        if score is not None:
            label = label if score.label_true is None else score.label_true
            pixels = pixels if score.pixels_true is None else score.pixels_true
        index = report.label.class_index
        classes = {*report.composition.raised, *([] if index is None else [index])}
        labels = tuple(one.label for one in report.label.samples if one.label is not None)
        return cls(
            share, label, pixels, frozenset(classes), _tokens(report), labels, found.to_pixels,
            own.loss,
        )  # fmt: skip

    @property
    def input(self) -> Tensor | None:
        """The input behind the share as the model takes it; None if it is not known."""
        if self.pixels is None or self.to_pixels is None:
            return None
        return self.to_pixels.apply(self.pixels.double())


def fall_of(subject: Subject, target: Target, options: Options) -> Fall | None:
    """Return how a step changes the loss of a target's sample; None if the sample is not known."""
    if target.label is None or target.pixels is None:
        return None
    pixels, norm = target.pixels, options.normalisation
    try:
        x = pixels if norm is None else norm.apply(pixels)
        return loss_fall(subject, target.share.share, x.float(), target.label, target.loss)
    except SoftleakError:  # the model does not take pixels as they are
        return None


def walks(subject: Subject) -> tuple[Subject, ...]:
    """Return the subject as it is inverted first, by a quick walk, and then by a thorough one."""
    if embeddings(subject):
        return (subject,)
    chain = subject.once(chain_of)
    if isinstance(chain, NoWay):
        return ()
    quick = subject.given(chain_of, Chain(chain.head, chain.passes[0]))
    return (quick, subject)[: len(chain.passes)]


@dataclass(frozen=True, eq=False)
class Trial:
    """One target behind a defence at one setting and seed. Every answer is computed once."""

    subject: Subject
    target: Target
    send: Callable[[], GradientShare]  # what is sent behind the defence, the same each time
    options: Options  # what the attacker knows of a share without a defence
    # What was sent as its receivers may read it, with all that the defence gives away about itself.
    # Each of them is an attacker.
    views: Callable[[GradientShare], Sequence[GradientShare]] = lambda sent: (sent,)
    reach: InputReach | None = None  # what could be estimated of the input; None walks alone
    aims: frozenset[Leak] = frozenset()  # what is attacked
    answers: dict[frozenset[Leak], bool] = field(default_factory=dict)  # by what is aimed at

    @cached_property
    def sent(self) -> GradientShare:
        """What is sent behind the defence."""
        return self.send()

    def forget(self) -> None:
        """Free the memory of what was sent, and keep the answers."""
        self.__dict__.pop("sent", None)

    @cached_property
    def asked(self) -> Options:
        """What the attacker knows of what was sent: not its scale, if a defence changed that."""
        if self.views(self.sent)[0].scale != "unknown":
            return self.options
        return replace(self.options, knowledge=replace(self.options.knowledge, scale="unknown"))

    @cached_property
    def recovery(self) -> Recovery:
        """The label recovered by all that is known of what was sent."""
        return recover(self.subject, [self.sent], self.asked.knowledge)[0]

    @cached_property
    def reached(self) -> bool:
        """Whether the input is within reach of whoever estimates it from what is sent."""
        return self.reach is not None and self.reach.shows(self.sent)

    @property
    def claimed(self) -> int | None:
        """The class that the attack claims; a guess that is right is no success."""
        return class_of(self.recovery)

    @property
    def guessed(self) -> bool:
        """Whether the attack names the right class, sure or not; several labels have none."""
        index, label = self.recovery.class_index, self.target.label
        if label is None or index is None or not self.recovery.loss.balanced:
            return False
        return index == int(label.argmax())

    @property
    def likely(self) -> bool:
        """Whether the right class is more probable than not, and than a guess by far."""
        classes = self.subject.head.classes
        least = max(LIKELY_CLASS, LIKELY_CHANCES / classes)
        return self.guessed and (self.recovery.confidence or 0.0) >= least

    @cached_property
    def left(self) -> frozenset[int]:
        """The classes that whoever reads what a compression left names."""
        return classes_left(self.subject, self.target.share.share, self.sent)

    def attacked(self, leak: Leak) -> bool:
        """Return whether a failure counts: an attack took what was sent for what it is."""
        if self.recovery.fit.holds or (leak is Leak.CLASS and self.left):
            return True
        return leak is Leak.INPUT and self.reach is not None and self.reach.estimate is not None

    @property
    def nearly(self) -> bool:
        """Whether the best label is right, although the attack does not claim it."""
        if self.target.label is None or self.target.samples or self.claimed is not None:
            return False
        return label_error(self.recovery, self.target.label) <= SUCCESS_LABEL_ERROR

    def hits(self, leak: Leak, walked: tuple[Subject, ...]) -> bool:
        """Return whether an attack succeeds: on a sample of several, or on the only one."""
        key = frozenset({leak})
        if key not in self.answers:
            if leak is Leak.INPUT:
                self.answers[key] = self.reached or self.sees(walked)
            else:
                self.answers[key] = self.finds(leak) if self.target.samples else self.names(leak)
        return self.answers[key]

    def names(self, leak: Leak) -> bool:
        """Return whether the attack claims the label rightly, or names its class or nearly so."""
        label = self.target.label
        if label is None:
            return False
        if leak is Leak.CLASS or _one_hot(label):
            own = int(label.argmax())
            return self.claimed == own or self.likely or own in self.left
        claims = class_of(self.recovery) is not None or listed(self.recovery)
        return claims and label_error(self.recovery, label) <= SUCCESS_LABEL_ERROR

    def finds(self, leak: Leak) -> bool:
        """Return whether an attack on an update of several samples proves a label, rightly."""
        found = read_batch(self.subject, self.sent, self.asked.knowledge.of(self.sent))
        labels = [one.label for one in found.proved if one.label is not None]
        if leak is Leak.CLASS or all(map(_one_hot, self.target.samples)):
            classes = {int(label.argmax()) for label in self.target.samples}
            return bool(classes & ({int(label.argmax()) for label in labels} | self.left))
        pairs = product(labels, self.target.samples)
        return any(float((one - true).abs().sum()) <= SUCCESS_LABEL_ERROR for one, true in pairs)

    def sees(self, walked: tuple[Subject, ...], *, believed: bool = False) -> bool:
        """Return whether a walk brings the image that is true, or that would be ``believed``."""
        if self.target.pixels is None and not self.target.tokens:
            return False
        return any(self._walk_sees(view, walked, believed) for view in self.views(self.sent))

    def _walk_sees(self, view: GradientShare, walked: tuple[Subject, ...], believed: bool) -> bool:
        exactly = replace(self.asked, seconds=0.0)  # matching would take its time
        for subject in walked:
            found = in_units_of(
                self.target.to_pixels, recover_input(subject, view, self.recovery, exactly)
            )
            if self._shows(found) or (believed and (found.leaked or found.doubtful)):
                return True
            told = found.psnr_predicted
            if told is None or told < LEAK_RECOGNISABLE - SUCCESS_WALK_GAIN:
                return False
        return False

    def _shows(self, found: InputFinding) -> bool:
        if found.text is not None and self.target.tokens:
            return _words_right(found.text, self.target.tokens) >= SUCCESS_WORDS
        true = self.target.pixels
        if found.pixels is None or true is None or found.pixels.shape != true.shape:
            return False
        return psnr(found.pixels, true) >= LEAK_RECOGNISABLE


def _one_hot(label: Tensor) -> bool:
    """Return whether a label is a class, which is then all that it tells."""
    return label.numel() > 1 and bool(label.max() == 1) and int((label != 0).sum()) == 1


def recover_together(trials: Sequence[Trial]) -> None:
    """Recover the labels of trials of one subject at once, where the same is known of them."""
    for scale in (None, "known", "unknown"):
        alike = [trial for trial in trials if trial.asked.knowledge.scale == scale]
        if alike:
            sent = [trial.sent for trial in alike]
            found = recover(alike[0].subject, sent, alike[0].asked.knowledge)
            for trial, recovery in zip(alike, found, strict=True):
                trial.__dict__["recovery"] = recovery  # where the cached property looks for it


def from_first(
    grid: Sequence[float], hides: Callable[[float], bool], start: int | None = None
) -> Sequence[float]:
    """Return a grid from its weakest hiding setting on; stronger ones are taken to hide too.

    The search begins at ``start``, in steps that double until the end is passed, and then bisects.
    """
    low, high, step = -1, len(grid), 1  # the last known not to hide, the first known to
    index = (low + high) // 2 if start is None else min(start, high - 1)
    while high - low > 1:
        if hides(grid[index]):
            high, ahead = index, index - step
        else:
            low, ahead = index, index + step
        far = start is None or not low < ahead < high
        index, step = (low + high) // 2 if far else ahead, step * 2
    return grid[high:]


def in_units_of(units: Normalisation | None, found: InputFinding) -> InputFinding:
    """Return a finding in the pixels that ``units`` makes of an input; None leaves it as it is.

    Two images, and their errors, can be compared only if both are stretched alike.
    """
    own = found.to_pixels
    if units is None or own is None or found.pixels is None:
        return found
    told = found.psnr_predicted
    if told is not None:
        told += 20 * math.log10(float(own.scale.mean() / units.scale.mean()))
    pixels = units.pixels(own.apply(found.pixels.double()))
    return replace(found, pixels=pixels, psnr_predicted=told, to_pixels=units)


def _tokens(report: AuditReport) -> tuple[int | None, ...]:
    """Return the words of a text by the truth if there is one, else as they leaked undefended."""
    if report.score is not None and report.score.tokens_true:
        return report.score.tokens_true
    text = report.input.text
    return text.tokens if text is not None and report.input.leaked else ()


def _words_right(text: Text, tokens: tuple[int | None, ...]) -> float:
    """Return the part of the words that an attacker claims to know, rightly, in their places."""
    sure = (Certainty.CERTAIN, Certainty.LIKELY)
    claimed = {place.position: place.token for place in text.places if place.certainty in sure}
    known = [(i, token) for i, token in enumerate(tokens) if token is not None]
    return sum(claimed.get(i) == token for i, token in known) / max(len(known), 1)


@dataclass(frozen=True, eq=False)
class InputReach:
    """Whether an image behind a defence could be estimated, without estimating it.

    A walk back through the layers breaks at the first noise, while matching gradients does not.
    Matching takes minutes for each setting of a defence, and an estimate of its error a moment.
    """

    subject: Subject
    target: Target

    @cached_property
    def estimate(self) -> NoiseReach | None:
        """The gradient linearised at the sample; None if the sample is not known or too large."""
        target, shape = self.target, self.subject.tensor_shape
        x = target.input
        if target.label is None or x is None or target.to_pixels is None or shape is None:
            return None
        try:
            return NoiseReach.of(
                self.subject, target.share.share, x.reshape(shape).float(), target.label.float(),
                target.to_pixels.scale,
            )  # fmt: skip
        except ModelError:  # too large, or dropout is active
            return None

    def shows(self, sent: GradientShare) -> bool:
        """Return whether a recognisable image is within reach, as far as that can be estimated."""
        if self.estimate is None:
            return False
        return self.estimate.exceeds(self.target.share.share, sent, LEAK_RECOGNISABLE)


def end_of(
    points: Sequence[Point], leak: Leak, bisections: int, succeeds: Callable[[float], bool]
) -> float | None:
    """Return the weakest setting without a success, stronger ones having none either, or None.

    The points go from weak to strong; settings between them are bisected in their logarithm.
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
    """Try the defences that are ``asked`` for, or the common ones, on every target."""
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
        """Return whether one attack succeeds on any share, or would not have been one."""
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
        found = []
        for trial in self.trials(setting):
            fall = self._falls[id(trial.target)]
            found.append(utility(trial.target.share.share, trial.sent, fall))
            trial.forget()
        return mean_utility(found)

    @cached_property
    def _falls(self) -> dict[int, Fall | None]:
        """How a step changes the loss of each target's own sample, where the sample is known."""
        return {id(one): fall_of(self.subject, one, self.options) for one in self.targets}

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
