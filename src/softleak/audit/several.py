"""Attack updates of several samples or steps: their classes, each sample, and their inputs."""

from __future__ import annotations

import math
import time
from dataclasses import fields, replace
from typing import TypeAlias

import torch
from torch import Tensor

from softleak.audit.metrics import label_error
from softleak.audit.options import Options
from softleak.audit.report import (
    CompositionFinding,
    Counts,
    SamplesFinding,
)
from softleak.batches.recover import read_batch
from softleak.batches.sparse.attacks import recover_by_inputs
from softleak.core.client import Client
from softleak.core.errors import SoftleakError, in_a_line
from softleak.core.fit import NOT_FITTED, Explanation, Fit, Topic
from softleak.core.input_spec import normalisation_of
from softleak.core.knowledge import Knowledge
from softleak.core.results import BatchRecovery, Status, Told, Why, because
from softleak.core.share import GradientShare, LocalTraining
from softleak.core.subject import Subject
from softleak.labels.composition import Batch, BatchReader, longest_step
from softleak.labels.local.proportions import ProportionReader, StandIns
from softleak.labels.otherwise import is_sign_pattern, without_decay

# What contradicts an update so that negative sums of its head say nothing of classes.
MEANINGLESS = frozenset({
    Explanation.OTHER_LOSS, Explanation.MSE, Explanation.SWAPPED, Explanation.OTHER_STEPS,
})  # fmt: skip
TINY = 1e-300  # the error of entries that pruning left
SIGN_PART = 0.1  # of the largest entry: a sign of less is not that of a gradient
COUNT_SLACK = 1e-3  # of a sample: what rounding may add to a bound
SPARE_CLASSES = 2  # a head of C classes tells fewer than C − 1 samples from each other


def read_composition(
    subject: Subject, share: GradientShare, knowledge: Knowledge, fit: Fit = NOT_FITTED
) -> CompositionFinding:
    """Return what a share of several samples says; counts if the number of samples is known.

    Whoever says that number says that the share is the mean gradient of one step on them. Weight
    decay is undone with the model's own parameters. Where the numbers contradict the loss or the
    sign, negative sums mean nothing; where they contradict no more than one plain step, signs do.
    """
    reader, samples = subject.once(BatchReader.of), knowledge.samples
    signs = fit.explanations & {Explanation.SIGNS, Explanation.ADAPTIVE}
    if signs or is_sign_pattern(share[reader.head.weight_name]):
        return _by_signs(reader, share)
    left = fit.explanations & {Explanation.PRUNED, Explanation.GRID}
    if left:  # an entry that is left after pruning is exact; one on a grid is off by a step at most
        step = fit[Topic.COMPRESSION].number if Explanation.GRID in left else 0.0
        return _finding(reader, share, reader.read(share, left=step or TINY))
    against = [h for h in fit.contradicted if h.explanation in MEANINGLESS]
    if against:
        return CompositionFinding(reasons=tuple(h.sentence for h in against))
    whole = None if knowledge.scale_unknown else samples
    share = replace(share, scale=knowledge.scale or share.scale)
    share, batch = _read(subject, reader, share, whole)
    counts, doubt = _bounded(reader, share, batch, whole)
    declared = knowledge.is_gradient or knowledge.scale is not None
    flipped = () if declared or not batch.raised else reader.read(share.scaled(-1)).raised
    unknown = because(Why.SCALE_UNKNOWN) if samples is not None and whole is None else ""
    other = because(Why.OTHERWISE, classes=flipped) if flipped else ""
    found = replace(_finding(reader, share, batch), counts=counts, otherwise=flipped)
    return found.because(doubt, unknown, other)


def _finding(reader: BatchReader, share: GradientShare, batch: Batch) -> CompositionFinding:
    """Return the classes that were read; without any, an attack counts if signs say something."""
    attacked = bool(batch.raised) or _could_prove(reader, share)
    why = (batch.message,) if attacked else (because(Why.NO_SIGN_ATTACK), batch.message)
    return CompositionFinding(
        batch.gradients, batch.present, None, why, attacked, raised=batch.raised
    )  # fmt: skip


def _read(
    subject: Subject, reader: BatchReader, share: GradientShare, samples: int | None
) -> tuple[GradientShare, Batch]:
    """Return the share without weight decay, and the classes that every way to undo it proves."""
    undone = list(without_decay(subject, share))
    if not undone:
        return share, reader.read(share, samples)
    batches = [reader.read(tried, samples) for tried, _ in undone]
    present = set.intersection(*(set(batch.present) for batch in batches))
    raised = set.intersection(*(set(batch.raised) for batch in batches))
    told = because(Why.DECAY_UNDONE, decay=undone[0][1], message=batches[0].message)
    first = replace(
        batches[0], message=str(told),
        present=tuple(sorted(present)), raised=tuple(sorted(raised)),
    )  # fmt: skip
    return undone[0][0], first


def _by_signs(reader: BatchReader, share: GradientShare) -> CompositionFinding:
    """Return the classes for which ``p − y`` is negative: steps of Adam keep signs.

    A class of no sample is lowered in every step, unless labels are smoothed and the model gives it
    less than they do. What is far smaller than the largest entry is what a decoupled weight decay
    moves.
    """
    head = reader.head
    negative = torch.zeros(head.classes, dtype=torch.bool)
    name = head.weight_name
    if head.has_bias and head.bias_name in share:
        name = head.bias_name
        negative = share[name].cpu() < -SIGN_PART * share.largest(name)
    elif reader.never_negative:
        negative = (share[name].cpu() < -SIGN_PART * share.largest(name)).any(1)
    raised = tuple(negative.nonzero()[:, 0].tolist())
    present = tuple(j for j in raised if reader.likely[j])
    attacked = _could_prove(reader, share)
    reasons = [] if attacked else [because(Why.NO_SIGN_ATTACK_ON_SIGNS)]
    reasons.append(because(Why.SIGNS_PROVE, classes=len(raised)))
    return CompositionFinding(1, present, None, tuple(reasons), attacked, signs=True, raised=raised)


def counted(
    subject: Subject, share: GradientShare, found: CompositionFinding, samples: int
) -> CompositionFinding:
    """Return a finding with the number of samples of each class, of one plain step on all."""
    if found.signs:
        return found
    reader = subject.once(BatchReader.of)
    estimated = reader.counts(share, found.raised, samples)
    batch = Batch(found.samples, found.present, estimated, found.message, found.raised)
    counts, doubt = _bounded(reader, share, batch, samples)
    return replace(found.because(doubt), counts=counts)


def _bounded(
    reader: BatchReader, share: GradientShare, batch: Batch, samples: int | None
) -> tuple[Counts | None, Told]:
    """Return the counts, or why none are claimed.

    A class that is raised by more than smoothing may do has ``n_c ≥ −B·δ_c`` samples, whatever the
    smoothing, and one at least; a part of them if a step may be longer than the mean gradient.
    """
    if batch.counts is None or samples is None:
        return None, ""
    if batch.gradients > samples:
        return None, because(Why.NOT_ONE_STEP, samples=samples)
    head, estimated = reader.head, batch.counts.tolist()
    if not head.has_bias or head.bias_name not in share:
        return Counts(tuple(estimated)), because(Why.COUNTS_ESTIMATED)
    longest = longest_step(share)
    bounds = (-samples / longest * share[head.bias_name].double()).tolist()
    floor = samples / head.classes  # smoothing moves a label towards this, from either side
    low = [
        max(math.ceil(bound - COUNT_SLACK) if bound > floor else 0, int(i in batch.present))
        for i, bound in enumerate(bounds)
    ]
    # At the rate that was stated, all of them are not more samples than there are.
    least = sum(max(math.ceil(b * longest - COUNT_SLACK), 0) for b in bounds if b * longest > floor)
    least, spare = max(least, sum(low)), samples - sum(low)
    if least > samples:
        return None, because(Why.TOO_FEW_SAMPLES, least=least, samples=samples)
    high = [least + spare for least in low]
    within = [min(max(n, a), b) for n, a, b in zip(estimated, low, high, strict=True)]
    return Counts(tuple(within), tuple(low), tuple(high)), because(Why.COUNTED, samples=samples)


def _could_prove(reader: BatchReader, share: GradientShare) -> bool:
    """Return whether signs say anything: by the bias, or by features that are never negative."""
    return (reader.head.has_bias and reader.head.bias_name in share) or reader.never_negative


Readers: TypeAlias = dict[tuple[LocalTraining, int, int], ProportionReader]
PARTS_LEAST = 0.01  # the smallest estimate of a class's part that is listed
PARTS_MOST = 10  # the largest number of classes that are listed


def parts_of_classes(
    subject: Subject, share: GradientShare, samples: int | None, stand_ins: StandIns | None
) -> Told:
    """Return how large a part of a client's data each class is, with intervals, or nothing.

    Its local training is run on stand-ins for its data; without these no interval can be relied on.
    """
    training = share.made_by
    if stand_ins is None or training is None or samples is None or samples < 2:
        return ""
    if training.unknowns or not training.trains:
        return ""
    made: Readers = subject.once(_readers)  # one for each way to train
    key = (training, samples, id(stand_ins))
    try:
        if key not in made:
            settings = {f.name: getattr(training, f.name) for f in fields(LocalTraining)}
            made[key] = ProportionReader.of(subject, Client(**settings), samples, stand_ins)
    except SoftleakError as error:
        return because(Why.PARTS_NOT_ESTIMATED, error=in_a_line(error))
    found = made[key].read(share)
    mean, (low, high) = found.mean.tolist(), found.interval.tolist()
    order = found.mean.argsort(descending=True).tolist()[:PARTS_MOST]
    parts = tuple((i, mean[i], low[i], high[i]) for i in order if mean[i] >= PARTS_LEAST)
    return because(Why.PARTS, parts=parts, message=found.message)


def _readers(_: Subject) -> Readers:
    return {}


def read_samples(
    subject: Subject, share: GradientShare, composition: CompositionFinding, options: Options
) -> SamplesFinding:
    """Attack every sample behind the gradient of one step on several."""
    if composition.signs:
        return SamplesFinding(reason=because(Why.SIGNS_OF_SEVERAL))
    knowledge, start = options.knowledge.of(share), time.perf_counter()
    try:
        found = _with_inputs(subject, share, knowledge, read_batch(subject, share, knowledge))
    except Exception as error:  # the attack runs the model, and its code may raise anything
        return SamplesFinding(reason=in_a_line(error))
    seconds = time.perf_counter() - start
    if not found.samples and found.size + SPARE_CLASSES > subject.head.classes:
        return SamplesFinding(reason=found.message, seconds=seconds)
    pictures: tuple[Tensor, ...] = ()
    if options.inputs and found.inputs is not None and found.inputs.ndim >= 2:
        pictures = tuple(normalisation_of(x, options.normalisation).pixels(x) for x in found.inputs)
    return SamplesFinding(found, found.reason, knowledge, pictures, seconds)


def _with_inputs(
    subject: Subject, share: GradientShare, knowledge: Knowledge, found: BatchRecovery
) -> BatchRecovery:
    """Return the samples with their inputs, if the first layer tells them.

    The first layer alone does not prove labels of a share whose scale nobody states. If the last
    layer proved all of them, it proved the scale as well, and the first layer is asked again.
    """
    if found.status is not Status.UNIQUE or found.inputs is not None or knowledge.scale_unknown:
        return found
    again = recover_by_inputs(subject, share, replace(knowledge, scale="known"))
    if again is None or again.status is not Status.UNIQUE or not _same_labels(found, again):
        return found
    return again


def _same_labels(one: BatchRecovery, other: BatchRecovery) -> bool:
    """Return whether two recoveries hold the same labels, in whatever order."""
    left = list(other.proved)
    for sample in one.proved:
        near = (
            two
            for two in left
            if two.label is not None and label_error(sample, two.label) <= sample.error + two.error
        )
        if (same := next(near, None)) is None:
            return False
        left.remove(same)
    return not left
