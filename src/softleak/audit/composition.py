"""Say in words how large a part of a client's data each class is.

The client's local training is run on images that stand in for its data. Without such images there
is no interval to rely on, and nothing is said.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TypeAlias

import torch
from torch import Tensor

from softleak.core.client import Client
from softleak.core.errors import SoftleakError, in_a_line
from softleak.core.knowledge import Knowledge
from softleak.core.results import Recovery, Status, Told, Why, because
from softleak.core.share import GradientShare, LocalTraining
from softleak.core.subject import Subject
from softleak.labels.composition import Batch, BatchReader
from softleak.labels.local.proportions import ProportionReader, Proportions, StandIns
from softleak.labels.otherwise import is_sign_pattern, without_decay

LABEL_READ = (because(Why.LABEL_READ),)
COUNT_SLACK = 1e-3  # of a sample: what rounding may add to a bound


@dataclass(frozen=True)
class Counts:
    """The number of samples of each class: an estimate, and bounds that are proved.

    A mean gradient has ``B·(−δ_c) = n_c − Σ p_c`` with probabilities p, so ``n_c ≥ −B·δ_c``; all
    counts sum to B, which bounds each from above. Without a head bias there are no bounds.
    """

    estimated: tuple[int, ...]
    low: tuple[int, ...] = ()
    high: tuple[int, ...] = ()


@dataclass(frozen=True)
class CompositionFinding:
    """The classes proved to be among the labels, and what is known of their number.

    ``otherwise`` are the classes that would be proved if the file held a difference of weights
    after − before and not a gradient, as long as nobody said which of the two it is.
    """

    samples: int = 1  # at least: samples, or steps on the same ones
    present: tuple[int, ...] = ()
    counts: Counts | None = None
    reasons: tuple[Told, ...] = LABEL_READ
    attacked: bool = False
    otherwise: tuple[int, ...] = ()
    signs: bool = (
        False  # whether the update is a pattern of signs, which has no label of one sample
    )

    @property
    def why(self) -> str:
        """Return the reasons in words."""
        return "; ".join(map(str, self.reasons))

    @property
    def message(self) -> str:
        """Return the reasons in words, and whether they are ones for no attack."""
        return self.why if self.attacked else str(because(Why.NOT_ATTACKED, why=self.why))

    def because(self, *more: Told) -> CompositionFinding:
        """Return the finding with further reasons."""
        return replace(self, reasons=(*self.reasons, *(one for one in more if one)))


def mixes(recovery: Recovery, found: CompositionFinding) -> bool:
    """Return whether an update is of several samples or steps, by its label's proof or by its rank.

    A label that is only guessed, or that nothing explains, is no reason to think of one sample.
    """
    unexplained = recovery.status in (Status.GUESS, Status.NO_SOLUTION)
    return recovery.status is Status.NOT_SINGLE or (unexplained and found.samples > 1)


def read_composition(
    subject: Subject, share: GradientShare, knowledge: Knowledge
) -> CompositionFinding:
    """Return what a share of several samples says; counts if the number of samples is known.

    Whoever says that number says that the share is the mean gradient of one step on them. Weight
    decay is undone with the model's own parameters.
    """
    reader, samples = subject.once(BatchReader.of), knowledge.samples
    declared = knowledge.is_gradient or knowledge.scale is not None
    if is_sign_pattern(share[reader.head.weight_name]):
        return _by_signs(reader, share)
    whole = None if knowledge.scale_unknown else samples
    share, batch = _read(subject, share, whole)
    counts, doubt = _bounded(reader, share, batch, whole)
    flipped = () if declared or not batch.present else reader.read(share.scaled(-1)).present
    said: list[Told] = [batch.message, *([doubt] if doubt else [])]
    if samples is not None and whole is None:
        said.append(because(Why.SCALE_UNKNOWN))
    if flipped:
        said.append(because(Why.OTHERWISE, classes=flipped))
    attacked = bool(batch.present) or could_prove(reader, share)
    if not attacked:
        said.insert(0, because(Why.NO_SIGN_ATTACK))
    return CompositionFinding(
        batch.gradients, batch.present, counts, tuple(said), attacked, flipped
    )  # fmt: skip


def _read(
    subject: Subject, share: GradientShare, samples: int | None
) -> tuple[GradientShare, Batch]:
    """Return the share without weight decay, and the classes that every way to undo it proves."""
    reader, undone = subject.once(BatchReader.of), list(without_decay(subject, share))
    if not undone:
        return share, reader.read(share, samples)
    batches = [reader.read(tried, samples) for tried, _ in undone]
    present = set.intersection(*(set(batch.present) for batch in batches))
    told = because(Why.DECAY_UNDONE, decay=undone[0][1], message=batches[0].message)
    first = replace(batches[0], present=tuple(sorted(present)), message=str(told))
    return undone[0][0], first


def _by_signs(reader: BatchReader, share: GradientShare) -> CompositionFinding:
    """Return the classes for which ``p − y`` is negative: the first step of Adam keeps signs."""
    head = reader.head
    negative = torch.zeros(head.classes, dtype=torch.bool)
    if head.has_bias and head.bias_name in share:
        negative = share[head.bias_name].cpu() < 0
    elif reader.never_negative:
        negative = (share[head.weight_name].cpu() < 0).any(1)
    present = tuple(negative.nonzero()[:, 0].tolist())
    attacked = could_prove(reader, share)
    reasons = [] if attacked else [because(Why.NO_SIGN_ATTACK_ON_SIGNS)]
    reasons.append(because(Why.SIGNS_PROVE, classes=len(present)))
    return CompositionFinding(1, present, None, tuple(reasons), attacked, signs=True)


def counted(
    subject: Subject, share: GradientShare, found: CompositionFinding, samples: int
) -> CompositionFinding:
    """Return a finding with the number of samples of each class.

    Args:
        subject: the model the gradients were computed with.
        share: the mean gradient of one plain step on all samples, which somebody has to know.
        found: the classes that were proved to be behind it.
        samples: how many samples there are.
    """
    if found.signs:
        return found
    reader = subject.once(BatchReader.of)
    estimated = reader.counts(share, found.present, samples)
    batch = Batch(found.samples, found.present, estimated, found.message)
    counts, doubt = _bounded(reader, share, batch, samples)
    return replace(found.because(doubt), counts=counts)


def _bounded(
    reader: BatchReader, share: GradientShare, batch: Batch, samples: int | None
) -> tuple[Counts | None, Told]:
    """Return the counts, or why none are claimed."""
    if batch.counts is None or samples is None:
        return None, ""
    if batch.gradients > samples:
        return None, because(Why.NOT_ONE_STEP, samples=samples)
    head, estimated = reader.head, batch.counts.tolist()
    if not head.has_bias or head.bias_name not in share:
        return Counts(tuple(estimated)), because(Why.COUNTS_ESTIMATED)
    low = _at_least(share[head.bias_name], batch, samples)
    spare = samples - sum(low)
    if spare < 0:
        return None, because(Why.TOO_FEW_SAMPLES, least=sum(low), samples=samples)
    high = [least + spare for least in low]
    within = [min(max(n, a), b) for n, a, b in zip(estimated, low, high, strict=True)]
    return Counts(tuple(within), tuple(low), tuple(high)), ""


def _at_least(delta: Tensor, batch: Batch, samples: int) -> list[int]:
    """Return ``n_c ≥ −B·δ_c``, and one of each class that is proved to be there."""
    bounds = (-samples * delta.double()).tolist()
    low = [max(math.ceil(bound - COUNT_SLACK), 0) for bound in bounds]
    return [max(n, int(i in batch.present)) for i, n in enumerate(low)]


def could_prove(reader: BatchReader, share: GradientShare) -> bool:
    """Return whether signs say anything of classes: by the head's bias, or by the features.

    Features that are never negative leave the sign of ``p − y`` in the gradient of the weight.
    """
    return (reader.head.has_bias and reader.head.bias_name in share) or reader.never_negative


Readers: TypeAlias = dict[tuple[LocalTraining, int, int], ProportionReader]


# What says which classes are listed.
PARTS_LEAST = 0.01  # the smallest estimate that is listed
PARTS_MOST = 10  # the largest number of classes that are listed


def parts_in_words(
    subject: Subject, share: GradientShare, samples: int | None, stand_ins: StandIns | None
) -> str:
    """Return the estimated parts of the classes with their intervals, or nothing.

    Args:
        subject: the model the client started from.
        share: ``before − after``, with the client in ``made_by``.
        samples: how many samples the client has.
        stand_ins: images with their classes that stand in for the client's.
    """
    training = share.made_by
    if stand_ins is None or training is None or samples is None or samples < 2:
        return ""
    if training.unknowns or not training.trains:
        return ""
    try:
        reader = _reader(subject, training, samples, stand_ins)
    except SoftleakError as error:
        return f"parts of the classes were not estimated: {in_a_line(error)}"
    return _parts_written(reader.read(share))


def _reader(
    subject: Subject, training: LocalTraining, samples: int, stand_ins: StandIns
) -> ProportionReader:
    """Return the reader for a client's settings, made once for each subject."""
    made = subject.once(_readers)
    key = (training, samples, id(stand_ins))
    if key not in made:
        settings = {f.name: getattr(training, f.name) for f in fields(LocalTraining)}
        made[key] = ProportionReader.of(subject, Client(**settings), samples, stand_ins)
    return made[key]


def _readers(_: Subject) -> Readers:
    return {}


def _parts_written(found: Proportions) -> str:
    order = found.mean.argsort(descending=True).tolist()[:PARTS_MOST]
    low, high = found.interval
    listed = ", ".join(
        f"class {i} {100 * float(found.mean[i]):.0f} % ({100 * float(low[i]):.0f} to "
        f"{100 * float(high[i]):.0f})"
        for i in order
        if float(found.mean[i]) >= PARTS_LEAST
    )
    return f"parts of the classes, with 90 % intervals: {listed} ({found.message})"
