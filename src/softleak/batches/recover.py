"""Recover every sample of a batch: the strongest attack that applies comes first."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from softleak.batches.certificate import (
    BatchCertificate,
    certify,
    certify_alone,
    without_other_labels,
    without_traded,
)
from softleak.batches.search import Whole, find_batch
from softleak.batches.sparse.attacks import (
    recover_by_features,
    recover_by_inputs,
    recover_trained_batch,
)
from softleak.batches.systems import (
    FoundSamples,
    HeadSpace,
    SamplePoints,
    Supports,
    joined_supports,
    supports_of,
)
from softleak.core.errors import LabelError, in_a_line
from softleak.core.families import Family, Mixed, Smoothed, SmoothedMixed
from softleak.core.head import Head, with_precision
from softleak.core.knowledge import Knowledge
from softleak.core.results import BatchRecovery, Recovery, Status
from softleak.core.share import GradientShare, Scale
from softleak.core.subject import Subject
from softleak.labels.certify import Doubt, describe_family, is_flat
from softleak.labels.evidence.relation import Relation
from softleak.labels.noisy.spectrum import features_of_noise
from softleak.labels.otherwise import BROKEN, without_decay
from softleak.labels.recover import check_share, make_subject, recover

# Families that are tried in turn if none is named, each beside those before it.
USUAL: tuple[Family, ...] = (Smoothed(), Mixed(2), SmoothedMixed(2))
ANY_USUAL = "one-hot, smoothed or mixed"  # what labels of them are


NARROW_ALL_CLASSES = 20  # up to this number of classes, all of them are tried
NARROW_PER_SAMPLE = 3  # beyond, this many per sample are tried, those that the gradient raises most
NARROW_AT_LEAST = 12  # and no fewer than this


class HeadReading(NamedTuple):
    """What the head's gradient says of a batch."""

    space: HeadSpace  # the factors of the gradient, at the scale that fits
    at: SamplePoints  # the samples that were found
    certificate: BatchCertificate  # what is proved of them, in their order
    whole: bool  # whether these are all samples that the gradient shows
    family: Family  # the last family that was tried
    scale: float = 1.0  # ``a·b``: the number of samples over the assumed one, where searched


def read_head(
    space: HeadSpace, features: Tensor, family: Family | None, *,
    scales: tuple[bool, ...] = (True, False), stated: bool = True,
) -> HeadReading | None:  # fmt: skip
    """Return the samples behind a head's gradient, or None if none was found.

    The search starts from usual ``features`` (n, I), with the scale known and then unknown, or as
    ``scales`` say. If it is not ``stated`` (the number of samples, and that the share is the
    gradient of their mean loss), it must follow from the numbers as well, since the labels of
    saturated samples move with it.
    """
    likely = _likely(space, features)
    best: HeadReading | None = None
    for scaled in scales:
        space, supports = replace(space, scaled=scaled), None
        for tried in USUAL if family is None else (family,):
            own = supports_of(tried, space.classes, likely)
            if own is None:
                continue
            supports = own if supports is None else joined_supports(supports, own)
            if 1 + supports.unknowns + space.rank > space.classes:
                continue  # There are not more equations than unknowns.
            whole, part = find_batch(space, supports, features)
            reading = _reading(space, supports, whole, part, tried, stated)
            if reading is not None and reading.whole:
                return reading
            if best is None or (reading and len(reading.at.a) > len(best.at.a)):
                best = reading
    return best


def _likely(space: HeadSpace, features: Tensor) -> list[int]:
    """Return the classes that labels may hold: those whose logits the batch raises most.

    A class that the network predicts of many samples is lowered in the mean even if one of them has
    its label. Its probabilities sum to more than one then, so fewer than R classes can be of that
    kind, and they are those that the batch lowers most.
    """
    if space.classes <= NARROW_ALL_CLASSES:
        return list(range(space.classes))
    if space.with_bias:
        raised = space.mean_difference
    elif len(features):
        raised = (space.gradient / space.columns) @ features.mean(0)
    else:
        raised = space.gradient.sum(1)
    count = max(NARROW_AT_LEAST, NARROW_PER_SAMPLE * space.rank)
    order = raised.argsort().tolist()
    return order[:count] + order[count:][-(space.rank - 1) :]


def _reading(
    space: HeadSpace, supports: Supports, whole: Whole | None, part: FoundSamples, family: Family,
    stated: bool,
) -> HeadReading | None:  # fmt: skip
    if whole is not None and whole.explained:
        at = whole.system.point(whole.x)
        system, x = whole.system, whole.x
        if space.scaled and not stated:
            system = replace(system, space=replace(space, scaled=False))
            x = torch.cat([x, torch.zeros_like(x[:1])])
        proof = without_traded(certify(system, x, whole.misfit), system, x, supports)
        scale = float(whole.system.unpack(whole.x)[2])
        return HeadReading(space, at, proof, True, family, scale)
    if not len(part) or not space.scaled:
        return None
    own = supports.opened() if space.is_levelled else supports
    proof, misfits = certify_alone(replace(space, scaled=stated), own, part)
    proof = without_other_labels(proof, space, own, part)
    rows = (misfits <= 4.0).nonzero()[:, 0]
    if not len(rows):
        return None
    found = part.take(rows)
    return HeadReading(space, found.at, proof.take(rows), False, family)


WHOLE_SAMPLES = 1e-3  # relative: a number this near to a whole one may be a number of samples


def _said(
    reading: HeadReading, samples: Sequence[Recovery], size: int, knowledge: Knowledge
) -> str:
    proved = sum(sample.status is Status.UNIQUE for sample in samples)
    kind = describe_family(knowledge.family) if knowledge.family else ANY_USUAL
    said = [
        f"{len(samples)} of {size} samples found, {proved} of them proved",
        f"the labels are assumed to be {kind}",
    ]
    if not reading.whole:
        said.append("the others fit no label of that kind, or were not found")
    if reading.scale != 1.0:
        said.append(_said_of_scale(reading, size, knowledge))
    if reading.whole and len(samples) < size:
        said.append("the others have no gradient that stands out of rounding")
    if knowledge.samples is None:
        said.append("no two samples are assumed to have the same feature")
    elif proved:
        said.append(f"that there are {size} samples, and no more that look alike, is taken as said")
    bits = float(reading.certificate.bits.min())
    said.append(f"the equations test {bits:.0f} bits beyond the unknowns")
    return "; ".join(said)


def _said_of_scale(reading: HeadReading, size: int, knowledge: Knowledge) -> str:
    times = reading.scale * size
    if knowledge.scale_unknown:
        return f"the share is {1 / reading.scale:.4g} times the mean gradient of {size} samples"
    divided = f"divided by {times:.6g}, not by {size}"
    numbers = f"the numbers are those of a sum over the samples {divided}"
    if abs(times - round(times)) > WHOLE_SAMPLES * times:
        return f"{numbers}: the share was scaled, or the learning rate or optimiser is another"
    return f"{numbers}: the batch has {times:.6g} samples, or the share was scaled"


def _said_of_one(proved: bool, tested: bool, error: float, knowledge: Knowledge) -> str:
    if proved:
        return f"one label explains this sample's part of the gradient, to within {error:.1g}"
    if knowledge.samples is None:
        return (
            "this label fits if the batch has no more samples than the gradient shows; say their "
            "number, since several samples can look like one"
        )
    if not tested:
        return "this label fits, but too few equations test it"
    if error < knowledge.tolerance:
        return (
            "this label fits to within rounding, but it is not proved: the batch is not at the "
            "scale or of the size that was said, or two of its samples are nearly alike"
        )
    return (
        f"this label fits, but rounding leaves it open to within {error:.1g} in L1, more than "
        f"{knowledge.tolerance:.1g}: another sample is too much like this one"
    )


def _unsolvable(space: HeadSpace, size: int, knowledge: Knowledge) -> str:
    """Return what is said if no sample was found."""
    if space.rank + 2 > space.classes:
        return (
            f"the head's gradient of {space.classes} classes has rank {space.rank}: with as many "
            "samples as classes, the head alone does not tell one from another"
        )
    kind = describe_family(knowledge.family) if knowledge.family else ANY_USUAL
    return (
        f"the head's gradient is of rank {space.rank}, so at least {space.rank} gradients were "
        f"added up, but no sample of a label that is {kind} was found in it: "
        f"the batch of {size} has other labels, took several steps, or is too large for the search"
    )


UNBALANCED = (
    "The columns of the head's gradient do not sum to zero, as those of a cross-entropy do: it "
    "carries noise, or was altered."
)
SINGULAR = (
    "the equations of the batch are singular to within rounding ({}): the network is so sure of "
    "its samples that nothing tells them apart; no label is claimed"
)
BALANCED_ROUNDINGS = 16.0  # the columns of a clean gradient sum to zero up to this many roundings


def recover_batch(
    model: nn.Module,
    share: GradientShare,
    *,
    size: int | None = None,
    family: Family | None = None,
    evidence: bool | Sequence[Relation] = True,
    scale: Scale | None = None,
    head: str | Head | None = None,
    input_shape: tuple[int, ...] | None = None,
) -> BatchRecovery:
    """Recover the soft label and the last-layer feature of every sample of a batch.

    Args:
        model: the classifier the gradient was computed with, in the same train/eval mode.
        share: what the client sent: the gradient of the mean loss of its batch.
        size: the number of samples in the batch. By default the rank of the head's gradient, which
            is a lower bound; then labels are found, but none of them is proved by the head.
        family: what is known of the labels. By default one-hot, smoothed, mixed and smoothed mixed
            labels of two classes are tried in turn, and any label where other layers offer it.
        evidence: whether gradients beside that of the head's weight are used.
        scale: "unknown" if the share may have been multiplied by any positive factor.
        head: the name of the last linear layer, if it is not to be found; or a prepared ``Head``.
        input_shape: the shape of one input, if the share does not say.

    Returns:
        A recovery for each sample that was found. A share of one sample gives what
        ``recover_label`` gives.

    Raises:
        SoftleakError: if the share cannot be read or does not fit the model.
    """
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise LabelError(f"size should be a number of samples, one or more, got {size!r}")
    knowledge = Knowledge(family, scale, samples=size, head_only=evidence is False)
    subject = make_subject(model, [share], evidence, head, input_shape)
    check_share(subject, share)
    return read_batch(subject, share, knowledge)


def read_batch(subject: Subject, share: GradientShare, knowledge: Knowledge) -> BatchRecovery:
    """Recover every sample behind one share; ``knowledge.samples`` is the size of the batch."""
    try:
        return _read_batch(subject, share, knowledge)
    except (ArithmeticError, BROKEN) as error:
        words = SINGULAR.format(in_a_line(error))
        return BatchRecovery(Status.NO_SOLUTION, words, knowledge.samples or 1)


def _read_batch(subject: Subject, share: GradientShare, knowledge: Knowledge) -> BatchRecovery:
    share, knowledge = with_precision(share, subject.head), knowledge.of(share)
    if share.made_by is not None:
        trained = recover_trained_batch(subject, share, knowledge)
        one = trained.inputs is not None and len(trained.inputs) == 1
        return trained if trained.size > 1 and not one else _alone(subject, share, knowledge)
    if subject.head.weight_name not in share:
        return _alone(subject, share, knowledge)
    space = HeadSpace.of(subject.head, share, use_bias=not knowledge.head_only)
    if space.rank <= 1:
        weak = _weak(subject, share, space, knowledge)
        if weak is not None and weak.status is Status.UNIQUE:
            return weak
        alone = _alone(subject, share, knowledge)
        return alone if weak is None else max(weak, alone, key=_worth)
    found = None if knowledge.head_only else _by_layers(subject, share, knowledge)
    if found is not None and found.status is Status.UNIQUE:
        return found
    if not _balanced(space, subject):
        return _undecayed(subject, share, knowledge)
    read = _read(subject, space, knowledge)
    if len(read.proved) < (knowledge.samples or space.rank):
        weak = _weak(subject, share, space, knowledge)
        read = read if weak is None else max(weak, read, key=_worth)
    return read if found is None else max(found, read, key=_worth)


def _weak(
    subject: Subject, share: GradientShare, space: HeadSpace, knowledge: Knowledge
) -> BatchRecovery | None:
    """Read a batch with samples whose gradient is weak beside that of others, by its rows."""
    if knowledge.samples is None or not len(space.S):
        return None
    levelled, size = space.levelled(), knowledge.samples
    if not 1 < levelled.rank <= size or not _balanced(space, subject):
        return None
    return _read(subject, levelled, knowledge)


def _by_layers(
    subject: Subject, share: GradientShare, knowledge: Knowledge
) -> BatchRecovery | None:
    """Read a batch from fully connected ReLU layers, whose labels may be any."""
    found = []
    for attack in (recover_by_inputs, recover_by_features):
        with suppress(ArithmeticError, BROKEN):
            found.append(attack(subject, share, knowledge))
    return max(filter(None, found), key=lambda one: len(one.proved), default=None)


def _worth(found: BatchRecovery) -> tuple[int, int]:
    """Return how many samples are proved, and how many were found."""
    return len(found.proved), len(found.samples)


def _read(subject: Subject, space: HeadSpace, knowledge: Knowledge) -> BatchRecovery:
    """Read a batch of rank two or more from the gradient of its head."""
    size = knowledge.samples or space.rank
    if size < space.rank:
        message = (
            f"the head's gradient is of rank {space.rank}, so at least {space.rank} gradients were "
            f"added up, where {size} samples were announced: the batch is larger, or it took "
            "several steps"
        )
        return BatchRecovery(Status.NO_SOLUTION, message, space.rank)
    features = subject.once(features_of_noise).to(space.U.device)
    scales = (False,) if knowledge.scale_unknown else (True, False)
    stated = knowledge.samples is not None and knowledge.scale == "known"
    scaled, family = space.times(float(size)), knowledge.family
    try:
        reading = read_head(scaled, features, family, scales=scales, stated=stated)
    except (ArithmeticError, BROKEN) as error:
        return BatchRecovery(Status.NOT_SINGLE, SINGULAR.format(in_a_line(error)), size)
    if reading is None:
        return BatchRecovery(Status.NOT_SINGLE, _unsolvable(space, size, knowledge), size)
    samples = tuple(_samples(reading, knowledge))
    proved = all(sample.status is Status.UNIQUE for sample in samples)
    shown = reading.whole and len(samples) == size
    assumed = knowledge.scale_unknown or reading.scale == 1.0
    status = Status.UNIQUE if proved and shown and assumed else Status.AMBIGUOUS
    return BatchRecovery(status, _said(reading, samples, size, knowledge), size, samples)


def _samples(reading: HeadReading, knowledge: Knowledge) -> list[Recovery]:
    proof, at = reading.certificate, reading.at
    features = reading.space.features(at.b)
    valid = (at.label.amin(-1) >= -(proof.label_errors + reading.space.relative)).tolist()
    tested, regular = proof.tested.tolist(), proof.regular.tolist()
    # Samples of one class with the same prediction have the same ``δ``, so that they look like one:
    # sixteen samples of an untrained network can have a gradient of rank three, and other labels of
    # three samples explain it. Only a number of samples that equals the rank excludes that. And the
    # numbers may fit another client than the assumed one.
    assumed = reading.scale == 1.0 or knowledge.scale_unknown
    apart = assumed and knowledge.samples == reading.space.rank
    samples = []
    for i, label in enumerate(at.label.clamp_min(0.0)):
        error = float(proof.label_errors[i]) + 2 * reading.space.relative
        flat = knowledge.scale != "known" and is_flat(label)
        proved = tested[i] and regular[i] and valid[i] and error < knowledge.tolerance
        proved = proved and not flat and apart
        said = _said_of_one(proved, tested[i], error, knowledge)
        samples.append(
            Recovery(
                Status.UNIQUE if proved else Status.AMBIGUOUS, Doubt.FLAT.value if flat else said,
                label / label.sum(), features[i], float(at.a[i].norm()), error,
                float(proof.feature_errors[i]), 1 / reading.scale, 1, family=reading.family,
            )
        )  # fmt: skip
    return samples


def _alone(subject: Subject, share: GradientShare, knowledge: Knowledge) -> BatchRecovery:
    """Read a share whose head's gradient shows one sample, or none that can be told apart."""
    several = knowledge.samples is not None and knowledge.samples > 1
    known = replace(knowledge, scale="unknown") if several else knowledge
    (answer,) = recover(subject, [share], known)
    found = () if answer.label is None else (answer,)
    if not several:
        return BatchRecovery(answer.status, answer.message, max(answer.samples, 1), found)
    status = Status.AMBIGUOUS if answer.status is Status.UNIQUE else answer.status
    size = knowledge.samples or 1
    shown = (
        f"the head's gradient shows one sample where {size} were announced: the others have no "
        "gradient that stands out of rounding, or the same feature or difference p − y as this one."
    )
    label = "The label is that of all of them taken as one sample, so nothing is proved"
    message = f"{shown} {label if found else 'All of them taken as one sample have no label'}"
    samples = tuple(replace(one, status=status, reason=message) for one in found)
    return BatchRecovery(status, message, size, samples)


def _undecayed(subject: Subject, share: GradientShare, knowledge: Knowledge) -> BatchRecovery:
    """Read a gradient whose columns do not sum to zero: without weight decay, if that is it."""
    for tried, decay in without_decay(subject, share):
        space = HeadSpace.of(subject.head, tried, use_bias=not knowledge.head_only)
        if space.rank > 1 and _balanced(space, subject):
            found = _read(subject, space, knowledge)
            note = f"; a weight decay of {decay:.3g} was undone"
            return replace(found, reason=found.message + note)
    answer = _alone(subject, share, replace(knowledge, samples=None))
    if answer.status is Status.NOT_SINGLE:
        return replace(answer, reason=f"{UNBALANCED} {answer.message}")
    return answer


def _balanced(space: HeadSpace, subject: Subject) -> bool:
    """Return whether the columns of the gradient sum to zero, as those of ``Σ δ xᵀ`` do."""
    sums = space.gradient.sum(0).abs()
    sizes = space.gradient.abs().sum(0)
    usual = space.widened(subject.once(features_of_noise).to(sums.device)).abs().mean()
    rounding = BALANCED_ROUNDINGS * space.relative * (sizes.max() + usual)
    allowed = rounding + space.absolute * (6 * len(space.gradient) ** 0.5)
    return bool((sums <= allowed).all()) and bool(torch.isfinite(sums).all())
