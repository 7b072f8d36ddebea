"""What an audit finds out of one share, as data, and the answer of an audit.

A label, a feature and an input, or those of every sample of several, make up a report of a share.
The reports of all shares, and how to run the audit again, make up an audit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from os import PathLike
from typing import Any, ClassVar, Literal, TypeAlias

from torch import Tensor

from softleak.audit.leaks import Leak
from softleak.audit.options import NO_NAMES, TokenNames
from softleak.audit.sweeps import WhatIf
from softleak.bounds.hidden import Hiding
from softleak.core.errors import LeakFound
from softleak.core.families import KNOWN_FAMILIES
from softleak.core.fit import Bearing, Explanation, Fit, Topic
from softleak.core.input_spec import Normalisation
from softleak.core.knowledge import Knowledge
from softleak.core.loss import CrossEntropy, MeanSquaredError
from softleak.core.results import BatchRecovery, Recovery, ShortRepr, Status, Told, Why, because
from softleak.core.vocabulary import State
from softleak.inversion.results import Certainty, LayerReport, Text
from softleak.matching.reconstruction import Certificate

LABEL_READ = (because(Why.LABEL_READ),)
NOT_SEVERAL = because(Why.NOT_SEVERAL)


class Outcome(Enum):
    """The ways in which an attack can end. Only an attack that ran can fail."""

    SUCCEEDED = "succeeded"
    NO_SUCCESS = "tried without success"
    NOT_APPLICABLE = "not applicable"
    NOT_CARRIED_OUT = "not carried out"

    @classmethod
    def of(cls, succeeded: bool) -> Outcome:
        """Return the outcome of an attack that was carried out."""
        return cls.SUCCEEDED if succeeded else cls.NO_SUCCESS


Ending: TypeAlias = tuple[Outcome, Told]  # how one attack on one share ended, and why


# What decides what counts as leaked.
LEAK_FEATURE_ERROR = 1e-2  # the relative error up to which a feature counts as known
LEAK_RECOGNISABLE = 20.0  # dB: an image this close to the truth shows what it is of
LEAK_DOUBTFUL = 18.0
LEAK_UNEXPLAINED = -100.0  # dB: what an image is worth that does not explain the share
LEAK_LABEL_ERROR = 0.1  # L1: a label whose error is bounded by this is known, if not exactly
LEAK_MISFIT = 0.2  # what a matched image may leave of the share, relative to its size


# What explains an update so that the length of a feature rests on more than the gradients.
OF_ANY_LENGTH = frozenset(
    {Explanation.ANY_TEMPERATURE, Explanation.TEMPERATURE, Explanation.TENSOR_FACTORS}
)


# How much of a label is proved, in the words of ``audit.json``: AMBIGUOUS is a set of labels, CLASS
# the class only, PROBABLE the class, probably.
Proved = Literal["UNIQUE", "AMBIGUOUS", "CLASS", "PROBABLE", "NOTHING"]


@dataclass(frozen=True, eq=False)
class LabelFinding:
    """What is known of the label of the only sample, or of those of several."""

    recovery: Recovery  # of the update read as that of one sample
    seconds: float
    samples: tuple[Recovery, ...] = ()  # of an update of several, those whose label is proved

    @property
    def proved(self) -> Proved:
        """Return what was proved, without any truth: UNIQUE if the label of any sample is."""
        return "UNIQUE" if self.samples else proved_of(self.recovery)

    @property
    def known(self) -> bool:
        """Return whether a label is named."""
        return bool(self.samples) or named(self.recovery)

    @property
    def listed(self) -> bool:
        """Return whether several labels of the sample, or its targets, are named."""
        return listed(self.recovery)

    @property
    def class_index(self) -> int | None:
        """Return the class that every label of the only sample has on top, if it fits."""
        return class_of(self.recovery)


def proved_of(recovery: Recovery) -> Proved:
    """Return what is proved of the label of one sample."""
    if recovery.status in (Status.UNIQUE, Status.PROBABLE):
        return "UNIQUE" if recovery.status is Status.UNIQUE else "PROBABLE"
    if recovery.readings:
        return "AMBIGUOUS"
    if class_of(recovery) is not None:
        return "CLASS"
    narrowed = recovery.status is Status.AMBIGUOUS and recovery.label is not None
    return "AMBIGUOUS" if narrowed else "NOTHING"


def named(recovery: Recovery) -> bool:
    """Return whether the label of one sample is named: alone, nearly, or as one of two readings."""
    # Evidence of other layers bounds the label of the gradient itself, as a report assumes.
    bounded = recovery.complete or _decided(recovery) or recovery.status is Status.PROBABLE
    close = bounded and recovery.error <= LEAK_LABEL_ERROR
    return recovery.status is Status.UNIQUE or close or bool(recovery.readings)


def listed(recovery: Recovery) -> bool:
    """Return whether several labels of one sample, or its targets, are named."""
    told = named(recovery) or recovery.status is Status.PROBABLE
    return told and recovery.label is not None and not recovery.loss.balanced


def class_of(recovery: Recovery) -> int | None:
    """Return the class every label that fits has on top, or that noise leaves probable."""
    if not recovery.loss.balanced:
        return _one_hot(recovery)
    if recovery.readings:
        labels = [one.label for one in recovery.readings]
        labels += [one.label for one in recovery.solutions]
        tops = {int(label.argmax()) for label in labels}
        return tops.pop() if len(tops) == 1 else None
    if recovery.status is Status.PROBABLE or recovery.proved_class is not None:
        probable = recovery.status is Status.PROBABLE
        return recovery.class_index if probable else recovery.proved_class
    if not named(recovery) or recovery.label is None or len(recovery.label) < 2:
        return None
    (first, second), (top, _) = (pair.tolist() for pair in recovery.label.topk(2))
    return top if first - second > recovery.error else None  # by more than the label's error


def _one_hot(recovery: Recovery) -> int | None:
    """Return the class whose indicator the targets of a squared error are; others name no class."""
    label = recovery.label
    if not isinstance(recovery.loss, MeanSquaredError) or not named(recovery) or label is None:
        return None
    top = int(label.argmax())
    off = label.clone()
    off[top] -= 1
    return top if len(label) > 1 and float(off.abs().sum()) <= LEAK_LABEL_ERROR else None


def _decided(recovery: Recovery) -> bool:
    """Return whether other layers tell the label, and none of them contradicts it."""
    pieces = recovery.evidence
    return any(p.agrees for p in pieces) and not any(p.refutes for p in pieces)


@dataclass(frozen=True)
class FeatureFinding:
    """Whether the input of the last layer is known, and to which relative error."""

    entries: int
    error: float
    proved: bool
    up_to_length: bool = False  # whether a temperature, or factors of tensors, give another length

    @classmethod
    def of(cls, recovery: Recovery) -> FeatureFinding:
        """Return what a recovery says of the feature.

        With unknown scale it may be exact by itself.
        """
        if recovery.feature is None:
            return cls(0, float("inf"), False)
        sure = recovery.status in (Status.UNIQUE, Status.PROBABLE)
        one = recovery.complete and len(recovery.solutions) == 1
        proved = sure or one or _decided(recovery)
        error = recovery.feature_error
        free = bool(recovery.fit.explanations & OF_ANY_LENGTH)
        return cls(recovery.feature.numel(), error, proved and error <= LEAK_FEATURE_ERROR, free)


@dataclass(frozen=True)
class Method:
    """A way to attack an input."""

    name: str  # what machines call it
    value: str  # what people call it
    # Whether it computes the input and predicts the error from its equations; otherwise it
    # searches, and an image counts by how well independent starts agree on it.
    exact: bool = False
    covers_open: bool = False  # whether that error includes what the equations leave open

    NONE: ClassVar[Method]
    QUOTIENT: ClassVar[Method]
    INVERSION: ClassVar[Method]
    SOLVING: ClassVar[Method]
    MATCHING: ClassVar[Method]
    EMBEDDING: ClassVar[Method]
    TEXT: ClassVar[Method]


Method.NONE = Method("NONE", "not attempted")
Method.QUOTIENT = Method("QUOTIENT", "one division, of the first layer's gradients", exact=True)
Method.INVERSION = Method("INVERSION", "exact inversion, layer by layer", exact=True)
Method.SOLVING = Method("SOLVING", "Gauss–Newton on the whole share", exact=True, covers_open=True)
Method.MATCHING = Method("MATCHING", "gradient matching")
Method.EMBEDDING = Method(
    "EMBEDDING", "closed form, from gradients of embeddings", exact=True, covers_open=True
)
Method.TEXT = Method("TEXT", "words read from gradients", exact=True)


@dataclass(frozen=True, eq=False)
class InputFinding:
    """The input as pixels in [0, 1], or as it is, and how good it must be.

    ``psnr_predicted`` is computed from the equations of an exact inversion. A matched image has
    none: it is judged by its ``misfit``, what remains of the gradient relative to its size, and by
    its ``agreement``, the PSNR in dB between two images found from independent starts.
    """

    method: Method
    reason: Told
    pixels: Tensor | None = None
    psnr_predicted: float | None = None
    determined: bool = False
    layers: tuple[LayerReport, ...] = ()
    to_pixels: Normalisation | None = None  # how pixels became the input
    misfit: float | None = None
    agreement: float | None = None
    seconds: float = 0.0
    asked: bool = True  # whether anybody wanted it
    text: Text | None = None  # the words, if the input is a text
    attempts: Mapping[str, Ending] = field(default_factory=dict)  # by the id of an attack
    certificate: Certificate | None = None  # of Gauss–Newton, if it was tried
    batch: tuple[Tensor, ...] = ()  # the pixels of every input, if there are several
    failed_to_run: bool = False  # whether the attack raised something
    instead_of: tuple[Told, ...] = ()  # what attacks found that were tried before this one
    beside: Told | None = None  # what became of an attack that was no better
    up_to_factor: bool = False  # whether it is an input, but for a factor that nothing tells
    factor: float = 1.0  # by which the tensors differ that it was computed from

    @property
    def outcome(self) -> Outcome:
        """How the attack ended."""
        if self.method == Method.NONE:
            return Outcome.NOT_CARRIED_OUT if self.failed_to_run else Outcome.NOT_APPLICABLE
        return Outcome.of(self.leaked)

    @property
    def ending(self) -> Ending:
        """Return how the attack ended, and why."""
        return self.outcome, self.told

    @property
    def told(self) -> Told:
        """Return the reason, or all reasons as one if there are several."""
        if self.beside is None and not self.instead_of:
            return self.reason
        every = (*self.instead_of, self.reason)
        return because(Why.OF_SEVERAL_ATTACKS, reasons=every, beside=self.beside)

    @property
    def message(self) -> str:
        """Return the reasons in words."""
        return str(self.told)

    @property
    def attacked(self) -> bool:
        """Return whether any attack on the input was carried out."""
        return self.method != Method.NONE

    @property
    def leaked(self) -> bool:
        """Return whether the image can be taken for recognisable, without any truth.

        By inversion or solving: the predicted PSNR is 20 dB or more, and every layer determined its
        input unless the prediction covers what was left open. An input up to a factor counts.
        By matching: the image explains the share, and another start led to the same one.
        Of a text: some word is known, with or without its place.
        """
        if self.text is not None:
            placed = self.text.count(Certainty.CERTAIN, Certainty.LIKELY)
            return bool(self.text.words or placed)
        if not self.method.exact:
            explains = (self.misfit or 0.0) <= LEAK_MISFIT
            return explains and (self.agreement or 0.0) >= LEAK_RECOGNISABLE
        told = self.determined or self.method.covers_open
        return self.up_to_factor or (told and (self.psnr_predicted or 0.0) >= LEAK_RECOGNISABLE)

    @property
    def doubtful(self) -> bool:
        """Return whether an image predicted below 20 dB may yet be recognisable."""
        told = self.psnr_predicted or 0.0
        return self.method.exact and LEAK_DOUBTFUL <= told < LEAK_RECOGNISABLE

    @property
    def quality(self) -> float:
        """Return how good the image should be, in dB, without any truth; of a text, its words."""
        if self.text is not None:
            return float(self.text.count(Certainty.CERTAIN, Certainty.LIKELY))
        told = self.psnr_predicted if self.method.exact else self.agreement
        if self.pixels is None or told is None or math.isnan(told):
            return -math.inf
        return told if (self.misfit or 0.0) <= LEAK_MISFIT else min(told, LEAK_UNEXPLAINED)


@dataclass(frozen=True)
class Counts:
    """The number of samples of each class: an estimate, and bounds that are proved.

    A mean gradient has ``B·(−δ_c) = n_c − Σ p_c`` with probabilities p, so ``n_c ≥ −B·δ_c``; all
    counts sum to B, which bounds each from above. Without a head bias there are no bounds. Where
    the rate of a step is stated alone, the bounds also hold behind Nesterov momentum.
    """

    estimated: tuple[int, ...]
    low: tuple[int, ...] = ()
    high: tuple[int, ...] = ()


@dataclass(frozen=True)
class CompositionFinding:
    """The classes proved to be among the labels, and what is known of their number.

    ``raised`` are all that the update makes more likely: classes of samples unless labels are
    smoothed. ``otherwise`` are those that a difference of weights after − before would prove, if it
    may be one.
    """

    samples: int = 1  # at least: samples, or steps on the same ones
    present: tuple[int, ...] = ()
    counts: Counts | None = None
    reasons: tuple[Told, ...] = LABEL_READ
    attacked: bool = False
    otherwise: tuple[int, ...] = ()
    signs: bool = False  # whether it is a pattern of signs, which has no label of one sample
    raised: tuple[int, ...] = ()

    @property
    def why(self) -> str:
        """Return the reasons in words."""
        return str(because(Why.ALL_OF, reasons=self.reasons))

    @property
    def message(self) -> str:
        """Return the reasons in words, and whether they are ones for no attack."""
        return self.why if self.attacked else str(because(Why.NOT_ATTACKED, why=self.why))

    def because(self, *more: Told) -> CompositionFinding:
        """Return the finding with further reasons."""
        return replace(self, reasons=(*self.reasons, *(one for one in more if one)))

    def with_labels(self, proved: Sequence[Recovery]) -> CompositionFinding:
        """Return the finding with the classes of samples whose labels are proved."""
        classes = {one.class_index for one in proved if one.class_index is not None}
        return replace(self, present=tuple(sorted(classes.union(self.present))))


UNREAD = CompositionFinding()


def mixes(recovery: Recovery, found: CompositionFinding) -> bool:
    """Return whether an update is of several samples or steps, by its label's proof or by its rank.

    A label that is only guessed, or that nothing explains, is no reason to think of one sample.
    """
    unexplained = recovery.status in (Status.GUESS, Status.NO_SOLUTION)
    return recovery.status is Status.NOT_SINGLE or (unexplained and found.samples > 1)


@dataclass(frozen=True, eq=False)
class SamplesFinding:
    """What was found of every sample of an update of several."""

    found: BatchRecovery | None = None  # the samples; None if they were not attacked
    reason: Told = NOT_SEVERAL  # what was found and what it rests on, or why there was no attack
    known: Knowledge | None = None  # what the attack took for granted of the client
    pictures: tuple[Tensor, ...] = ()  # the inputs in pixels, in order, where a layer gives them
    seconds: float = 0.0  # how long the attack took
    searched: InputFinding | None = None  # how a search for all inputs ended, if one was made

    @property
    def message(self) -> str:
        """Return the reason in words, and that it is one for no attack."""
        return str(self.reason if self.attacked else because(Why.NOT_ATTACKED, why=self.reason))

    @property
    def attacked(self) -> bool:
        """Return whether samples were searched one by one."""
        return self.found is not None

    @property
    def samples(self) -> tuple[Recovery, ...]:
        """Return the samples that were found, proved or not."""
        return () if self.found is None else self.found.samples

    @property
    def proved(self) -> tuple[Recovery, ...]:
        """Return the samples whose label is proved."""
        return () if self.found is None else self.found.proved

    @property
    def size(self) -> int:
        """Return the number of samples behind the update, as far as it is known."""
        return 0 if self.found is None else self.found.size

    @property
    def features(self) -> int:
        """Return the number of samples whose feature is proved."""
        return sum(one.feature_error <= LEAK_FEATURE_ERROR for one in self.proved)

    @property
    def inputs(self) -> int:
        """Return the number of inputs that are given away, which is all of them or none."""
        if self.searched is not None:
            return len(self.pictures) if self.searched.leaked else 0
        whole = self.found is not None and self.found.status is Status.UNIQUE
        return len(self.pictures) if whole else 0

    @property
    def proved_inputs(self) -> int:
        """Return the number of inputs that are proved; a matched one is a candidate."""
        return self.inputs if self.searched is None or self.searched.method.exact else 0


NO_SAMPLES = SamplesFinding()


@dataclass(frozen=True, eq=False)
class Score:
    """What the truth says of the answer. It is read after the answer was given."""

    label_true: Tensor | None = None
    label_error: float | None = None
    set_distance: float | None = None
    pixels_true: Tensor | None = None
    psnr: float | None = None
    tokens_true: tuple[int, ...] = ()  # of a text
    tokens_right: float | None = None  # the part of these that was found in its place

    @property
    def recognisable(self) -> bool | None:
        """Return whether the image shows what the true one is of, None if there is no image."""
        return None if self.psnr is None else self.psnr >= LEAK_RECOGNISABLE


@dataclass(frozen=True, eq=False, repr=False)
class AuditReport(ShortRepr):
    """Of one share what it gave away, and how that was found out."""

    name: str
    label: LabelFinding
    feature: FeatureFinding
    input: InputFinding
    knowledge: Knowledge
    view: dict[str, Any] | None = None  # the loss over the searched scalar
    score: Score | None = None
    fingerprint: str = ""  # SHA-256 of the file it came from
    composition: CompositionFinding = UNREAD
    notes: tuple[str, ...] = ()  # what the share looks like, where that explains the verdict
    tokens: TokenNames = NO_NAMES  # the words behind the ids of a text
    samples: SamplesFinding = NO_SAMPLES  # of an update of several
    or_mean: bool = False  # whether several samples of one class would have passed for one
    remarks: tuple[str, ...] = ()  # on what of the update was not read

    def __post_init__(self) -> None:
        label = replace(self.label, samples=self.samples.proved)  # whoever proved them
        object.__setattr__(self, "label", label)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Return what the findings rest on, in sentences that follow from what was known."""
        from softleak.present.words import resting_on  # above this layer, where words are made

        return tuple(resting_on(self))

    @property
    def several(self) -> bool:
        """Return whether several samples or steps are behind it, and so no single label."""
        return mixes(self.label.recovery, self.composition)

    @property
    def alone(self) -> bool:
        """Return whether the label of one sample was attacked, which signs do not have."""
        text = self.label.recovery.status is Status.OWN_LABEL
        return not (self.several or self.composition.signs or text)

    @property
    def why(self) -> str:
        """Return why the label is what it is, by the notes on the share or by the recovery."""
        return str(because(Why.ALL_OF, reasons=self.notes or (self.label.recovery.reason,)))

    @cached_property
    def states(self) -> dict[Leak, State]:
        """Return for each kind of leak whether it was found, not found, or not attacked."""
        states = {leak: leak.state(self) for leak in Leak}
        if self.fit.holds:
            return states
        # An attack fails for nothing where what it rests on is not so.
        failed = State.NO_SUCCESS
        return {k: State.CONTRADICTED if s is failed else s for k, s in states.items()}

    @property
    def fit(self) -> Fit:
        """Return what the numbers of the update say of everything that is assumed of it."""
        return self.label.recovery.fit

    @property
    def of_open_loss(self) -> bool:
        """Return whether a label of no simple kind is the right one under one loss alone."""
        recovery = self.label.recovery
        simple = (
            recovery.family in KNOWN_FAMILIES
            or recovery.fit[Topic.LOSS].bearing is not Bearing.OPEN
        )
        return recovery.status is Status.UNIQUE and not simple and self.knowledge.loss is None

    @property
    def refuted(self) -> bool:
        """Return whether no label and no class is named, as the update is not what was stated."""
        return self.states[Leak.LABEL] is State.CONTRADICTED and self.label.class_index is None

    @property
    def knows_label(self) -> bool:
        """Return whether a label is named: that of the only sample, or of one of several."""
        return self.label.known or self._counted

    @property
    def _counted(self) -> bool:
        """Return whether the number of samples of each class is known."""
        counts = self.composition.counts
        return counts is not None and bool(counts.low) and counts.low == counts.high

    @property
    def knows_class(self) -> bool:
        """Return whether a class is named.

        A label of two equal halves is known and has no class; one of two readings has one.
        """
        if self.label.class_index is not None or self.label.recovery.readings:
            return True
        if self.label.recovery.targets:
            return False
        one = len(self.composition.raised) == 1 == len(self.composition.present)
        alone = one and (not self.several or self._counted)
        if alone or not isinstance(self.label.recovery.loss, CrossEntropy):
            return alone or self.label.known or self.label.listed
        return any(one.class_index is not None for one in self.samples.proved)

    @property
    def shows_input(self) -> bool:
        """Return whether a recognisable input was recovered, by the truth if it is known.

        What was computed exactly and predicted to be good counts whatever the truth says. Without a
        truth, what is predicted to be nearly good counts too.
        """
        told = None if self.score is None else self.score.recognisable
        if told is None or (self.input.method.exact and self.input.leaked):
            return self.input.leaked or self.input.doubtful
        return told

    @cached_property
    def leaks(self) -> frozenset[Leak]:
        """Return what was found to leak."""
        return frozenset(k for k, state in self.states.items() if state is State.LEAKED)

    @cached_property
    def unattacked(self) -> frozenset[Leak]:
        """Return the kinds of leak that were not attacked, or could not be."""
        return frozenset(k for k, state in self.states.items() if not state.attacked)

    @property
    def telling(self) -> bool:
        """Return whether anything leaked that defences are tried on, a set of labels included."""
        return bool(self.leaks - {Leak.COMPOSITION}) or self.label.proved != "NOTHING"

    @property
    def seconds(self) -> float:
        """Return how long the attacks took."""
        return self.label.seconds + self.input.seconds + self.samples.seconds

    def raise_for(self, *stop: Leak | str) -> None:
        """Raise ``LeakFound`` if one of these leaks, or was not attacked; without a name, any."""
        from softleak.present.words import gate  # above this layer, where words are made

        kinds = [Leak.named(kind) if isinstance(kind, str) else kind for kind in stop or Leak]
        if (self.leaks | self.unattacked) & frozenset(kinds):
            raise LeakFound(gate(self, kinds))

    def _lines(self) -> Iterator[str]:
        from softleak.present.words import headline, states_in_brief  # above, where words are made

        yield f"{self.name}: {headline(self)}"
        yield states_in_brief(self)

    def to_html(self, path: str | PathLike[str], class_names: tuple[str, ...] = ()) -> None:
        """Write the page of this share alone, whole or not at all."""
        from softleak.present.page import write_page  # above this layer, where sentences are made

        write_page(path, Audit((self,), class_names=class_names, remarks=self.remarks))


@dataclass(frozen=True)
class Refusal:
    """A file that could not be audited, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Provenance:
    """What somebody needs to run the audit again, as names and values."""

    command: str = ""  # the command line
    versions: tuple[tuple[str, str], ...] = ()  # of everything that computed
    inputs: tuple[tuple[str, str], ...] = ()  # the SHA-256 of each file that was read
    date: str = ""  # when the audit ran, in UTC as ISO 8601 writes it
    hashes: tuple[tuple[str, str], ...] = ()  # the SHA-256 of weights and code
    auditor: str = ""  # who answers for the audit, as they say


@dataclass(frozen=True, eq=False, repr=False)
class Audit(ShortRepr):
    """A report of each share of a model, the files refused, and how to run it again."""

    reports: tuple[AuditReport, ...]
    refused: tuple[Refusal, ...] = ()
    class_names: tuple[str, ...] = ()
    model: str = ""
    evidence: tuple[str, ...] = ()
    provenance: Provenance = Provenance()
    what_if: WhatIf | None = None
    remarks: tuple[str, ...] = ()  # how files were read
    cautions: tuple[str, ...] = ()  # sentences that belong to the verdict, as on random weights
    hiding: tuple[tuple[str, Hiding], ...] = ()  # by share: which noise is proved to hide its label

    def _lines(self) -> Iterator[str]:
        from softleak.present.words import summary  # above this layer, where words are made

        yield f"Audit: {summary(self)}"

    def count(self, leak: Leak, *states: State) -> int:
        """Return the number of shares of which this kind of leak is in one of the states."""
        return sum(r.states[leak] in (states or (State.LEAKED,)) for r in self.reports)

    def untried(self, leak: Leak) -> int:
        """Return the number of shares of which this kind of leak was not attacked."""
        return self.count(leak, State.NOT_ATTACKED, State.CONTRADICTED)
