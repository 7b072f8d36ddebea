"""What an attack answers: a status, the answer, its error, all else that fits, and why.

A reason is data: a kind, and the numbers and names that belong to it. ``present.sentences`` has a
sentence for each kind.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

import torch
from torch import Tensor

from softleak.core.fit import NOT_FITTED, Fit
from softleak.core.loss import CROSS_ENTROPY, BinaryCrossEntropy, Loss


class Why(Enum):
    """What a finding can rest on, or why there is none."""

    # of a label under another loss than the cross-entropy
    NO_HEAD_WEIGHT = auto()
    ZERO_HEAD = auto()
    NO_LABEL_OF_LOSS = auto()  # loss
    NO_LABEL_OF_FAMILY = auto()  # family
    UNDER_STATED_LOSS = auto()  # loss
    LOSS_NOT_TESTED = auto()  # loss
    ANY_SCALAR_FITS = auto()  # loss
    STEPS_OF_LOSS = auto()  # loss
    STEPS_OF_LAYERS = auto()  # loss
    SEVERAL_RANK = auto()  # rank
    FULL_RANK = auto()  # rank
    TAGS_BEHIND_NOISE = auto()  # noise, confidence
    TAGS_HIDDEN = auto()  # noise
    NOISE_AT_ANY_SCALE = auto()  # noise
    NEXT_TOKENS = auto()
    # of an attack on an input
    NOT_ASKED = auto()
    ONLY_SIGNS = auto()
    SEVERAL_MIXED = auto()
    NO_FEATURE = auto()
    NOT_RUN = auto()  # name, error
    OFFERS_NOTHING = auto()
    STRONGER_SUCCEEDED = auto()
    NOT_REAL_VALUED = auto()
    NO_FINITE_SOLUTION = auto()
    DIVIDED = auto()  # layer
    DIVIDED_TO_A_FACTOR = auto()  # layer
    TO_A_FACTOR = auto()  # message
    DETERMINED = auto()
    NOT_BORNE_OUT = auto()
    UNDETERMINED = auto()
    MATCHED = auto()  # several, misfit, agreement
    SOLVED = auto()  # several, open
    UNROLLED = auto()
    NOT_PROVED = auto()  # why
    NO_BETTER = auto()  # method
    NO_TIME = auto()
    NO_TIME_FOR_BATCH = auto()
    NO_SHAPE = auto()
    TOO_MANY_UNKNOWNS = auto()  # unknowns, most
    SAY_ONE_SAMPLE = auto()  # message
    # of the classes of several samples
    LABEL_READ = auto()
    NO_SIGN_ATTACK = auto()
    NO_SIGN_ATTACK_ON_SIGNS = auto()
    SIGNS_PROVE = auto()  # classes
    DECAY_UNDONE = auto()  # decay, message
    SCALE_UNKNOWN = auto()
    OTHERWISE = auto()  # classes
    NOT_ONE_STEP = auto()  # samples
    COUNTS_ESTIMATED = auto()
    COUNTED = auto()  # samples
    TOO_FEW_SAMPLES = auto()  # least, samples
    PARTS = auto()  # parts: (class, mean, low, high) each; message
    PARTS_NOT_ESTIMATED = auto()  # error
    NOT_COUNTED = auto()  # why
    # of every sample of a batch
    NOT_SEVERAL = auto()
    SIGNS_OF_SEVERAL = auto()
    NOT_ATTACKED = auto()  # why
    # of several reasons
    ALL_OF = auto()  # reasons
    OF_SEVERAL_ATTACKS = auto()  # reasons, beside
    ANOTHER_READING = auto()  # sign, class_index


@dataclass(frozen=True)
class Reason:
    """One reason with the numbers and names that belong to it."""

    kind: Why
    fields: tuple[tuple[str, object], ...] = ()
    notes: tuple[Told, ...] = ()  # further remarks

    def __str__(self) -> str:
        """Return the reason in words."""
        from softleak.present.sentences import sentence  # above this layer, where words are made

        return sentence(self)


Told: TypeAlias = Reason | str  # a string is a caller's own, or what an exception said


def because(kind: Why, **fields: object) -> Reason:
    """Return a reason with its fields."""
    return Reason(kind, tuple(fields.items()))


MOST_CLASSES = 3  # that a label names; the others are summed up
LEAST_WEIGHT = 0.005  # above the floor of a smoothed label, for a class to be named
WIDTH, MOST_LINES = 96, 3  # of a message


class ShortRepr:
    """A result that shows itself in the lines that ``_lines`` yields."""

    def _lines(self) -> Iterator[str]:
        raise NotImplementedError

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


def label_in_words(label: Tensor) -> str:
    """Return a soft label (C,) such as "class 3 (0.91), class 7 (0.09)"."""
    flat = label.detach().double().cpu()
    floor = float(flat.median()) if len(flat) > MOST_CLASSES else 0.0
    weights, classes = flat.topk(min(MOST_CLASSES, len(flat)))
    named = [
        (f"class {one} ({weight:.2f})", weight)
        for one, weight in zip(classes.tolist(), weights.tolist(), strict=True)
        if weight - floor >= LEAST_WEIGHT
    ]
    rest = float(flat.sum()) - sum(weight for _, weight in named)
    words = [word for word, _ in named]
    if not words:
        return f"about {1 / len(flat):.2g} for each of {len(flat)} classes"
    return ", ".join([*words, *([f"all others {rest:.2f}"] if rest >= LEAST_WEIGHT else [])])


MOST_TAGS = 12  # labels of a sample that are named


OPEN_TAG = 0.1  # the probability from which on a label may be there


def tags_in_words(label: Tensor, names: Sequence[str] = (), presence: Tensor | None = None) -> str:
    """Return several labels of one sample (C,) such as "has 2 of 14: class 3, class 7".

    With their probabilities, those that may be there as well are named.
    """
    flat = label.detach().double().cpu()
    had = [i for i, value in enumerate(flat.tolist()) if value > 0.5]
    chance = [None] * len(flat) if presence is None else presence.tolist()
    said = [names[i] if i < len(names) else f"class {i}" for i in range(len(flat))]
    said = [n if p is None else f"{n} ({p:.2f})" for n, p in zip(said, chance, strict=True)]
    named = [said[i] for i in had[:MOST_TAGS]]
    open_ = [n for n, p in zip(said, chance, strict=True) if p is not None and OPEN_TAG < p <= 0.5]
    more = f"; perhaps {', '.join(open_[:MOST_TAGS])}" if open_ else ""
    if len(had) > MOST_TAGS:
        named.append(f"{len(had) - MOST_TAGS} more")
    e = float(torch.minimum(flat, 1 - flat).mean())
    smoothed = f" (smoothed by {e:.2f})" if e >= LEAST_WEIGHT else ""
    listed = f"{': ' * bool(had)}{', '.join(named)}{smoothed}{more}"
    return f"has {len(had) or 'none'} of {len(flat)}{listed}"


def targets_in_words(targets: Tensor) -> str:
    """Return the targets of a regression (C,) such as "targets 1.25, -0.31"."""
    shown = [f"{value:.4g}" for value in targets.detach().double().cpu()[:MOST_TAGS].tolist()]
    more = len(targets) - len(shown)
    return f"targets {', '.join(shown)}{f' and {more} more' * bool(more)}"


def message_lines(message: str) -> list[str]:
    """Return a message in a few indented lines, cut off where there would be more."""
    return textwrap.wrap(
        message, WIDTH, initial_indent="  ", subsequent_indent="  ", max_lines=MOST_LINES,
        placeholder=" …",
    )  # fmt: skip


SAMPLES_SHOWN = 4  # of a batch, in its short text


class Status(Enum):
    """How an attack ended, and how much it proved: ``UNIQUE`` a label, and ``PROVED`` an input."""

    UNIQUE = "one label explains the gradient"
    AMBIGUOUS = "several labels explain the gradient equally well"
    ZERO_GRADIENT = "the head's gradient is exactly zero"
    NO_SOLUTION = "no label of the assumed kind explains the gradient"
    NOT_SINGLE = "the head's gradient is not that of one sample at these weights"
    PROBABLE = "the share carries noise: the label has a confidence and an interval"
    GUESS = "the share carries so much noise that even the class is a guess"
    REFUSED = "the share cannot be read, or does not fit the model"
    OWN_LABEL = "a text is its own label: its words, each the next one of those before it"
    # of an input that is searched
    PROVED = "every layer is explained to within its rounding, and the share determines every pixel"
    CONVERGED = "the loss hardly falls any more"
    EXHAUSTED = "all evaluations were used"
    EXPLAINED = "the start explains the gradient as well as its rounding allows, and is kept"
    OUT_OF_TIME = "out of time; the best iterate so far is kept"
    INTERRUPTED = "interrupted; the best iterate so far is kept"
    DIVERGED = "the loss became NaN or infinite; the best iterate before that is kept"
    NON_FINITE = "the share holds NaN or infinity: it matches nothing"
    NO_LABEL = "no label or feature was recovered to reconstruct with"
    UNFIT = "the share, its label or its start does not fit the model"


@dataclass(frozen=True, eq=False)
class Candidate:
    """A scalar at which the loss has a minimum, and the label it would mean.

    If it ``fits``, so does every scalar from ``low`` to ``high``; ``labels`` (S, C) are theirs,
    from one end to the other. ``misfit`` is in units of rounding error. Rounding may have moved
    each of these labels by up to ``rounding`` in L1.
    """

    scalar: float
    low: float
    high: float
    misfit: float
    fits: bool
    label: Tensor
    labels: Tensor
    rounding: float = 0.0

    @property
    def width(self) -> float:
        """Return how far apart, in L1, the labels of this candidate can be."""
        return float((self.labels.amax(0) - self.labels.amin(0)).sum())


@dataclass(frozen=True)
class Evidence:
    """What one gradient beside the head's weight says about the scalar."""

    parameter: str
    explanation: str
    scalar: float
    error: float
    misfit: float  # relative to the gradient's size
    holds: bool  # the gradient is what the relation says it should be
    agrees: bool  # and the scalar is the one the others give
    single: bool = False  # and a second sample in the share would have shown here

    @property
    def refutes(self) -> bool:
        """Return whether it contradicts the answer; an infinite misfit says nothing either way."""
        return not self.agrees and self.misfit < float("inf")


@dataclass(frozen=True, eq=False)
class Reading:
    """Another reading of the same numbers: a simple ``label`` (C,) of a share times ``scale``.

    A negative scale means that the share is a difference of weights, ``after − before``, and not
    a gradient. ``family`` is the simple family the label belongs to. A ``temperature`` other than
    one is that of a loss that divides the logits by it.
    """

    label: Tensor
    scale: float
    family: object
    temperature: float = 1.0


@dataclass(frozen=True, eq=False, repr=False)
class Recovery(ShortRepr):
    """The soft label and the feature behind one share, and what else fits.

    ``label`` (C,), ``feature`` (I,) and ``scalar`` are those of the best candidate; they are None
    unless a candidate fits. ``error`` bounds the L1 error of ``label``; ``feature_error`` is
    relative. ``scale`` is the factor the share was multiplied by, if that was searched.

    Under ``noise`` (a standard deviation, estimated) the label is the mean of those of the most
    probable class, ``confidence`` is that class's probability, ``interval`` (2, C) holds each entry
    with a probability of 90 %, and so does ``error`` the label's.
    """

    status: Status
    reason: Told
    label: Tensor | None = None
    feature: Tensor | None = None
    scalar: float | None = None
    error: float = float("inf")
    feature_error: float = float("inf")
    scale: float = 1.0
    samples: int = 1  # the least number of gradients behind the share: samples, or local steps
    difference: Tensor | None = None  # p − y (C,), where the head's bias gives it and no more
    family: object | None = None  # the simplest known family the label may belong to
    candidates: tuple[Candidate, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    complete: bool = False  # whether the solutions are all there are
    readings: tuple[Reading, ...] = ()  # simpler labels, if the share has another scale or sign
    noise: float = 0.0
    confidence: float | None = None
    interval: Tensor | None = None
    presence: Tensor | None = None  # (C,) behind noise: how probable each of several labels is
    loss: Loss = CROSS_ENTROPY  # the loss that the label rests on
    fit: Fit = NOT_FITTED  # what the numbers say of everything that is assumed

    @property
    def message(self) -> str:
        """Return why the answer is what it is, in words."""
        return str(self.reason)

    @property
    def solutions(self) -> tuple[Candidate, ...]:
        """Return the candidates that fit: the set the true label lies in."""
        return tuple(c for c in self.candidates if c.fits)

    @property
    def class_index(self) -> int | None:
        """Return the class with the largest share of the label."""
        return None if self.label is None else int(self.label.argmax())

    @property
    def tags(self) -> bool:
        """Return whether the label is several, each of which a sample has or has not."""
        return isinstance(self.loss, BinaryCrossEntropy)

    @property
    def targets(self) -> bool:
        """Return whether the label is the targets of a regression, which are of no classes."""
        return not self.loss.balanced and self.loss.most == float("inf")

    @property
    def in_words(self) -> str:
        """Return the label in words, as its loss takes it."""
        if self.label is None:
            return "no label"
        if self.tags:
            return tags_in_words(self.label, (), self.presence)
        return (label_in_words if self.loss.balanced else targets_in_words)(self.label)

    @property
    def proved_class(self) -> int | None:
        """Return the class that leads in every label that may be the true one, or None."""
        if self.status is Status.UNIQUE and self.label is not None:
            return _leader(self.label[None], self.error)
        if not self.complete:
            return None
        leaders = {_leader(c.labels, c.rounding) for c in self.solutions}
        return leaders.pop() if len(leaders) == 1 else None

    def _summary(self) -> str:
        """Return the status, the label and its error in one line."""
        if self.label is None:
            return f"{self.status.name}, no label"
        known = f", error at most {self.error:.2g}" if self.error < float("inf") else ""
        what = "all of them" if self.tags else "class"
        sure = "" if self.confidence is None else f", {what} confident to {self.confidence:.2f}"
        return f"{self.status.name}, {self.in_words}{known}{sure}"

    def _lines(self) -> Iterator[str]:
        yield f"Recovery: {self._summary()}"
        yield from message_lines(self.message)


@dataclass(frozen=True, eq=False, repr=False)
class BatchRecovery(ShortRepr):
    """What is known of every sample of a batch, from one share.

    Attributes:
        status: UNIQUE if every sample is proved; AMBIGUOUS if samples were found but not all of
            them are proved; NO_SOLUTION if none was found; otherwise as for one sample.
        reason: what was found, what it rests on and what is not known.
        size: the number of samples behind the share: as it was stated, or the rank of the head's
            gradient, which is a lower bound.
        samples: a recovery for each sample that was found. Their order says nothing.
        inputs: the inputs (N, …) of these samples, in their order, where a layer gives them.
        input_error: the largest standard error of an entry of the inputs.
    """

    status: Status
    reason: Told
    size: int
    samples: tuple[Recovery, ...] = ()
    inputs: Tensor | None = None
    input_error: float = float("inf")

    @property
    def message(self) -> str:
        """Return what was found, what it rests on and what is not known, in sentences."""
        return str(self.reason)

    @property
    def proved(self) -> tuple[Recovery, ...]:
        """Return the samples whose label is proved."""
        return tuple(sample for sample in self.samples if sample.status is Status.UNIQUE)

    def _lines(self) -> Iterator[str]:
        count = f"{len(self.samples)} of {self.size} samples found, {len(self.proved)} proved"
        yield f"BatchRecovery: {self.status.name}, {count}"
        yield from (f"  - {sample._summary()}" for sample in self.samples[:SAMPLES_SHOWN])
        if len(self.samples) > SAMPLES_SHOWN:
            yield f"  - and {len(self.samples) - SAMPLES_SHOWN} more"
        yield from message_lines(self.message)


def _leader(labels: Tensor, error: float) -> int | None:
    """Return the class on top of all labels (S, C), each known to within ``error`` in L1."""
    if labels.shape[-1] < 2:
        return None  # one output is no class
    values, indices = labels.topk(2)
    clear = bool((values[:, 0] - values[:, 1] > error).all())
    tops = set(indices[:, 0].tolist())
    return tops.pop() if clear and len(tops) == 1 else None
