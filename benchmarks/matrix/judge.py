"""Judge whether a report is right, also in what it shows in green; only this reads the truth."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.adversary.judge import FAILURES
from benchmarks.adversary.judge import judge as judge_label
from benchmarks.adversary.truth import Truth, variants
from benchmarks.matrix.simple import FEATURE_NEAR, simple_leaks
from benchmarks.matrix.updates import Sent
from softleak.audit import AuditReport, Leak, State
from softleak.audit import Truth as Told
from softleak.audit.metrics import pairing, psnr
from softleak.audit.report import LEAK_LABEL_ERROR, LEAK_RECOGNISABLE
from softleak.core.input_spec import normalisation_of
from softleak.core.results import Recovery, Status
from softleak.core.subject import Subject
from softleak.labels.composition import BatchReader

OF_ONE_SAMPLE = (Leak.LABEL, Leak.CLASS, Leak.FEATURE)
NOTHING_TRIED = "all is grey, yet the exit code is 0"
NOTHING_REALLY = "no attack that was made could have succeeded"
SURE = 0.9  # the confidence from which a probable class is a claim
SLACK = 3.0  # dB that an input may be worse than it was predicted to be


def contradicted(report: AuditReport) -> bool:
    """Return whether the report says that the update contradicts what is assumed of it."""
    fit = getattr(report, "fit", None)
    states = {state.name for state in report.states.values()}
    return "CONTRADICTED" in states or bool(getattr(fit, "contradicted", False))


def why_contradicted(report: AuditReport) -> tuple[str, ...]:
    """Return what the numbers contradict, in words."""
    hypotheses = getattr(getattr(report, "fit", None), "hypotheses", ())
    return tuple(
        f"{one.topic.value}: {one.explanation.value}"
        for one in hypotheses
        if one.bearing.name == "CONTRADICTED"
    )


def wrong_claims(subject: Subject, report: AuditReport, sent: Sent) -> tuple[str, ...]:
    """Return what was claimed and is not true."""
    label, leak = report.label, report.label.proved
    outcome = judge_label(label.recovery, _truth(sent), told=False)
    sure = (label.recovery.confidence or 1.0) > SURE
    named = leak == "CLASS" or (leak == "PROBABLE" and sure)
    feature = _feature_error(report, sent)
    claims = {
        "label unique": leak == "UNIQUE" and outcome in FAILURES,
        "set of labels": leak == "AMBIGUOUS" and outcome in FAILURES,
        "label known": label.known and leak != "UNIQUE" and not _known(report, sent),
        "class": named and label.class_index not in sent.data.classes,
        "classes present": _wrongly_present(report, sent) > 0,
        "counts": not _counts_hold(report, sent),
        "labels of samples": not _samples_hold(report, sent),
        "inputs of samples": not _inputs_hold(report, sent),
        "feature": report.feature.proved and FEATURE_NEAR < feature < float("inf"),
        "input": _input_wrong(subject, report, sent),
        "words": not _words_hold(report, sent),
        "words in all likelihood": not _likely_words_hold(report, sent),
        "contradiction": sent.sound and contradicted(report),
    }
    return tuple(name for name, wrong in claims.items() if wrong)


def green_tiles(subject: Subject, report: AuditReport, sent: Sent) -> tuple[str, ...]:
    """Return what is shown as attacked without success but leaks simply, or was not attacked."""
    green = [leak for leak, state in report.states.items() if state is State.NO_SUCCESS]
    simple = simple_leaks(subject, sent)
    return tuple(
        f"{leak.value}: {simple.get(leak, 'not really attacked')}"
        for leak in green
        if leak in simple or not _really_attacked(leak, subject, report, sent)
    )


def missed(subject: Subject, report: AuditReport, sent: Sent) -> tuple[str, ...]:
    """Return what leaks simply and is said not to have been attacked."""
    open_ = {leak for leak, state in report.states.items()
             if state not in (State.LEAKED, State.NO_SUCCESS)}  # fmt: skip
    simple = simple_leaks(subject, sent)
    return tuple(f"{leak.value}: {how}" for leak, how in simple.items() if leak in open_)


def falsely_green(
    subject: Subject, report: AuditReport, sent: Sent, exit_code: int
) -> tuple[str, ...]:
    """Return why a report that names no leak, with exit code 0, is no all-clear; nothing if it is.

    Either something simple leaks, or nothing was really attacked.
    """
    states = report.states
    if exit_code != 0 or State.LEAKED in states.values():
        return ()
    simple = simple_leaks(subject, sent)
    if simple:
        return tuple(f"{leak.value}: {how}" for leak, how in simple.items())
    tried = [leak for leak, state in states.items() if state is State.NO_SUCCESS]
    if not tried:
        return (NOTHING_TRIED,)
    if any(_really_attacked(leak, subject, report, sent) for leak in tried):
        return ()
    return (NOTHING_REALLY,)


def _truth(sent: Sent) -> Truth:
    labels = variants(tuple(sent.labels), torch.float32)
    return Truth(labels, samples=len(sent.data.x), steps=sent.steps)


def _really_attacked(leak: Leak, subject: Subject, report: AuditReport, sent: Sent) -> bool:
    """Return whether an attack of this kind, on such an update, could have succeeded at all.

    What was taken for noise though there is none was not attacked for what it is.
    """
    recovery = report.label.recovery
    if leak in OF_ONE_SAMPLE:
        signs = report.composition.signs
        if report.samples.attacked:
            return not signs
        several = len(sent.data.x) > 1 or recovery.status is Status.NOT_SINGLE
        invented = recovery.status in (Status.GUESS, Status.PROBABLE) and not sent.noisy
        return not (signs or several or invented)
    if leak is Leak.COMPOSITION:
        reader, head = subject.once(BatchReader.of), subject.head
        if "carries noise" in reader.read(sent.share).message:
            return False
        return (head.has_bias and head.bias_name in sent.share) or reader.never_negative
    return report.input.attacked


def _named(recovery: Recovery) -> list[Tensor]:
    labels = [one.label for one in recovery.readings]
    return [*labels, *([] if recovery.label is None else [recovery.label])]


def _known(report: AuditReport, sent: Sent) -> bool:
    """Return whether a label that counts as known, or another reading, is a true one."""
    errors = [_l1(one, y) for one in _named(report.label.recovery) for y in sent.labels]
    return min(errors, default=float("inf")) <= LEAK_LABEL_ERROR


def _l1(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other).abs().sum())


def _wrongly_present(report: AuditReport, sent: Sent) -> int:
    """Return how many classes are called present that no sample has, in the better reading."""
    found = report.composition
    readings = [found.present, *([found.otherwise] if found.otherwise else [])]
    return min(len(set(present) - sent.data.classes) for present in readings)


def _counts_hold(report: AuditReport, sent: Sent) -> bool:
    """Return whether the true number of samples per class is within the bounds."""
    counts = report.composition.counts
    if counts is None or not counts.low:
        return True
    bounds = zip(counts.low, sent.data.y.sum(0).tolist(), counts.high, strict=True)
    return all(low <= round(n) <= high for low, n, high in bounds)


def _samples_hold(report: AuditReport, sent: Sent) -> bool:
    """Return whether every proved label is that of a sample of its own, to within its error."""
    proved, true = report.samples.proved, sent.labels
    if len(proved) > len(true):
        return False
    near = torch.tensor(
        [[_l1(one.label, y) <= one.error + 1e-6 for y in true] if one.label is not None
         else [False] * len(true) for one in proved]
    ).reshape(len(proved), len(true))  # fmt: skip
    chosen = pairing(1.0 - near.double()) if len(proved) else []
    return all(bool(near[row, column]) for row, column in enumerate(chosen))


def _inputs_hold(report: AuditReport, sent: Sent) -> bool:
    """Return whether every input that was computed for a sample is recognisable."""
    found = report.samples.found
    if not report.samples.inputs or found is None or found.inputs is None:
        return True
    alike = [(x, normalisation_of(x, None)) for x in found.inputs]
    best = [
        max(psnr(norm.pixels(x), norm.pixels(true)) for true in sent.data.x) for x, norm in alike
    ]
    return min(best) >= LEAK_RECOGNISABLE


def _or_mean(true: Tensor, report: AuditReport) -> Tensor:
    """Return what is true of the samples, with their mean where the report says that it may be."""
    return torch.cat([true, true.mean(0, keepdim=True)]) if report.or_mean else true


def _feature_error(report: AuditReport, sent: Sent) -> float:
    """Return the relative error of the feature; infinite if there is none.

    A feature whose length is said to rest on the loss is compared at the true length.
    """
    found = report.label.recovery.feature
    if found is None:
        return float("inf")
    found = found.double()
    if report.feature.up_to_length:
        found = found * (sent.features.norm(dim=1, keepdim=True) / found.norm())
    true = _or_mean(sent.features, report)
    off = (found - true).norm(dim=1) / true.norm(dim=1)
    return float(off.min())


def input_psnr(subject: Subject, report: AuditReport, sent: Sent) -> float | None:
    """Return the PSNR in dB of the input that was found; None if there is none."""
    if report.input.pixels is None or not sent.data.x.is_floating_point():
        return None
    every = [
        Told(None, x).fitted(subject.head.classes, subject.input_shape)
        for x in _or_mean(sent.data.x, report)
    ]
    scores = [one.score(report.label.recovery, report.input, None).psnr for one in every]
    return max((one for one in scores if one is not None), default=None)


def _input_wrong(subject: Subject, report: AuditReport, sent: Sent) -> bool:
    """Return whether an input is much worse than it is claimed to be."""
    image, found = input_psnr(subject, report, sent), report.input
    if image is None:
        return False
    if not found.method.exact:
        return found.leaked and image < LEAK_RECOGNISABLE
    told = found.psnr_predicted
    below = told is not None and image < told - SLACK
    if report.shows_input:
        return below and image < LEAK_RECOGNISABLE
    return found.determined and below


def _likely_words_hold(report: AuditReport, sent: Sent) -> bool:
    """Return whether at least half of the words that are called likely stand where it is said."""
    text = report.input.text
    likely = [p for p in text.places if p.certainty.name == "LIKELY"] if text else []
    right = max(
        sum(p.position < len(row) and int(row[p.position]) == p.token for p in likely)
        for row in sent.data.x
    )
    return 2 * right >= len(likely)


def _words_hold(report: AuditReport, sent: Sent) -> bool:
    """Return whether words that are called certain are true, and where places are, in theirs."""
    text = report.input.text
    if text is None:
        return True
    if not set(text.words) <= set(sent.data.x.flatten().tolist()):
        return False
    sure = [place for place in text.places if place.certainty.name == "CERTAIN"]
    return any(
        all(p.position < len(row) and int(row[p.position]) == p.token for p in sure)
        for row in sent.data.x
    )
