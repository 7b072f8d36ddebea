"""Ask whether an input is within an attacker's reach behind a defence."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from softleak.audit.findings import (
    LEAK_RECOGNISABLE,
    InputFinding,
    LabelFinding,
    LabelLeak,
    PixelMap,
)
from softleak.audit.input_attacks import embeddings, recover_input
from softleak.audit.metrics import label_error, psnr
from softleak.audit.options import Options
from softleak.audit.rates import LossFall
from softleak.audit.report import AuditReport
from softleak.audit.run import NamedShare
from softleak.batches.recover import read_batch
from softleak.core.errors import ModelError, SoftleakError
from softleak.core.factors import head_gradients
from softleak.core.results import Recovery
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.core.vocabulary import Leak
from softleak.defenses.defense import Defense, as_known
from softleak.inversion.chain import Chain, NoChain, chain_of
from softleak.inversion.texts.result import Certainty, Text
from softleak.labels.composition import BatchReader
from softleak.matching.gauss_newton.reach import NoiseReach

NAMED_Z = 3.0  # standard deviations below zero at which an attacker takes a class for proved


def classes_named(subject: Subject, sent: GradientShare, noise: float) -> frozenset[int]:
    """Return the classes read off a share whose entries carry noise of this standard deviation."""
    try:
        reader = subject.once(BatchReader.of)
    except Exception:  # it runs the model, whose own code may raise anything
        return frozenset()
    named = set(reader.read(sent.expecting(noise)).present)
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
    delta = (
        sent[head.bias_name].double().cpu() if head.has_bias and head.bias_name in sent else None
    )
    one = torch.ones(())
    alone = [] if delta is None else [(delta, one)]
    if not reader.never_negative:
        return alone
    usual = reader.features.mean(0).cpu()
    weight = G.double().cpu()
    square = (weight != 0).to(usual) @ usual.square()
    rows = weight @ usual
    both = [] if delta is None else [(rows + delta, (square + 1).sqrt())]
    return [*alone, (rows, square.sqrt()), *both]


# What decides whether an attack on a defended share succeeded.
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
    to_pixels: PixelMap | None = None  # how the input became pixels

    @classmethod
    def of(cls, share: NamedShare, report: AuditReport) -> Target:
        """Return the target by the truth if there is one, else by what leaked undefended."""
        found, score = report.input, report.score
        label = report.label.recovery.label if report.label.leak is not LabelLeak.NOTHING else None
        pixels = found.pixels if found.leaked else None
        if score is not None:
            label = label if score.label_true is None else score.label_true
            pixels = pixels if score.pixels_true is None else score.pixels_true
        index = report.label.class_index
        classes = {*report.composition.present, *([] if index is None else [index])}
        labels = tuple(one.label for one in report.samples.proved if one.label is not None)
        tokens, to_pixels = _tokens(report), found.to_pixels
        return cls(share, label, pixels, frozenset(classes), tokens, labels, to_pixels)

    @property
    def input(self) -> Tensor | None:
        """The input behind the share as the model takes it; None if it is not known."""
        if self.pixels is None or self.to_pixels is None:
            return None
        return self.to_pixels.undo(self.pixels)


def fall_of(subject: Subject, target: Target, options: Options) -> LossFall | None:
    """Return how a step changes the loss of a target's sample; None if the sample is not known.

    The sample is the true one if the truth was given, else the one that leaked undefended.
    """
    if target.label is None or target.pixels is None:
        return None
    pixels, norm = target.pixels, options.normalisation
    try:
        x = pixels if norm is None else norm.apply(pixels)
        return LossFall.of(subject, target.share.share, x.float(), target.label)
    except SoftleakError:  # the model does not take pixels as they are
        return None


def walks(subject: Subject) -> tuple[Subject, ...]:
    """Return the subject as it is inverted first, by a quick walk, and then by a thorough one."""
    if embeddings(subject):
        return (subject,)
    chain = subject.once(chain_of)
    if isinstance(chain, NoChain):
        return ()
    quick = subject.given(chain_of, Chain(chain.head, chain.passes[0]))
    return (quick, subject)[: len(chain.passes)]


@dataclass(frozen=True, eq=False)
class Shot:
    """One defended share, what its attacker knows of it, and what can be scored.

    ``public`` is what was sent, with all that the defence gives away about itself.
    """

    target: Target
    sent: GradientShare
    public: GradientShare
    options: Options
    aims: frozenset[Leak]

    @classmethod
    def at(cls, target: Target, defense: Defense, options: Options, inputs: bool) -> Shot:
        """Return a target behind a defence.

        Its input is attacked too if somebody asks for ``inputs``.
        """
        sent = defense(target.share.share)
        public = as_known(defense, sent)
        knowledge = options.knowledge
        if public.scale == "unknown":
            knowledge = replace(knowledge, scale="unknown")
        asked = replace(options, knowledge=knowledge)
        told = target.label is not None or bool(target.samples)
        label = frozenset({Leak.LABEL, Leak.CLASS}) if told else frozenset()
        aimed = target.pixels is not None or bool(target.tokens)
        image = frozenset({Leak.INPUT}) if inputs and aimed else frozenset()
        return cls(target, sent, public, asked, label | image)

    def hits(self, leak: Leak, recovery: Recovery, subjects: tuple[Subject, ...]) -> bool:
        """Return whether an attack reached its target."""
        if leak is Leak.INPUT:
            return self.sees(recovery, subjects)
        claimed = LabelFinding(recovery, 0.0).class_index  # a guess that is right is no success
        label = self.target.label
        if claimed is None or label is None:
            return False
        if leak is Leak.CLASS:
            return claimed == int(label.argmax())
        return label_error(recovery, label) <= SUCCESS_LABEL_ERROR

    def nearly(self, recovery: Recovery) -> bool:
        """Return whether the best label is right, although the attack does not claim it."""
        label = self.target.label
        if (
            label is None
            or self.target.samples
            or LabelFinding(recovery, 0.0).class_index is not None
        ):
            return False
        return label_error(recovery, label) <= SUCCESS_LABEL_ERROR

    def finds(self, leak: Leak, subject: Subject) -> bool:
        """Return whether an attack on an update of several samples proves a label, rightly."""
        found = read_batch(subject, self.sent, self.options.knowledge.of(self.sent))
        labels = [one.label for one in found.proved if one.label is not None]
        if leak is Leak.CLASS:
            classes = {int(label.argmax()) for label in self.target.samples}
            return any(int(label.argmax()) in classes for label in labels)
        return any(
            float((label - true).abs().sum()) <= SUCCESS_LABEL_ERROR
            for label in labels
            for true in self.target.samples
        )

    def sees(
        self, recovery: Recovery, subjects: tuple[Subject, ...], *, believed: bool = False
    ) -> bool:
        """Return whether a walk brings the image; a thorough one is tried if it is within reach.

        If so asked, what an attacker would have ``believed`` counts as well as what is true.
        """
        if self.target.pixels is None and not self.target.tokens:
            return False
        exactly = replace(self.options, seconds=0.0)  # matching would take its time
        for subject in subjects:
            found = in_units_of(
                self.target.to_pixels, recover_input(subject, self.public, recovery, exactly)
            )
            if self._shows(found) or (believed and (found.leaked or found.doubtful)):
                return True
            if (
                found.psnr_predicted is None
                or found.psnr_predicted < LEAK_RECOGNISABLE - SUCCESS_WALK_GAIN
            ):
                return False
        return False

    def _shows(self, found: InputFinding) -> bool:
        if found.text is not None and self.target.tokens:
            return _words_right(found.text, self.target.tokens) >= SUCCESS_WORDS
        true = self.target.pixels
        if found.pixels is None or true is None or found.pixels.shape != true.shape:
            return False
        return psnr(found.pixels, true) >= LEAK_RECOGNISABLE


def in_units_of(units: PixelMap | None, found: InputFinding) -> InputFinding:
    """Return a finding in other pixels.

    Where nobody says how pixels became inputs, every image is stretched to its own range. Two
    images can be compared, and their errors too, only if both are stretched alike.

    Args:
        units: how the input becomes pixels; None leaves the finding as it is.
        found: what an attack found.
    """
    own = found.to_pixels
    if units is None or own is None or found.pixels is None:
        return found
    told = found.psnr_predicted
    if told is not None:
        told += 20 * math.log10(float(own.scale.mean() / units.scale.mean()))
    pixels = units(own.undo(found.pixels))
    return replace(found, pixels=pixels, psnr_predicted=told, to_pixels=units)


def _tokens(report: AuditReport) -> tuple[int | None, ...]:
    """Return the words of a text by the truth if there is one, else as they leaked undefended."""
    if report.score is not None and report.score.tokens_true:
        return report.score.tokens_true
    text = report.input.text
    return text.tokens if text is not None and report.input.leaked else ()


def _words_right(text: Text, tokens: tuple[int | None, ...]) -> float:
    """Return the part of the words that an attacker claims to know, rightly, in their places."""
    claimed = {
        place.position: place.token
        for place in text.places
        if place.certainty in (Certainty.CERTAIN, Certainty.LIKELY)
    }
    known = [(i, token) for i, token in enumerate(tokens) if token is not None]
    return sum(claimed.get(i) == token for i, token in known) / max(len(known), 1)


@dataclass(frozen=True, eq=False)
class InputReach:
    """Whether an image behind a defence could be estimated, without estimating it.

    A walk back through the layers breaks at the first noise, while matching gradients does not.
    Matching takes minutes for each setting of a defence, and an estimate of its error a moment.

    Attributes:
        subject: the model made ready.
        target: the share, and the input behind it.
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
