"""Judge whether a report is right, also in what it shows in green; only this reads the truth."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.adversary.judge import FAILURES
from benchmarks.adversary.judge import judge as judge_label
from benchmarks.matrix.updates import Sent
from softleak.audit import AuditReport, Leak, Method, State
from softleak.audit import Truth as Told
from softleak.audit.findings import (
    LEAK_FEATURE_ERROR,
    LEAK_LABEL_ERROR,
    LEAK_RECOGNISABLE,
)
from softleak.core.results import Status
from softleak.core.subject import Subject
from softleak.labels.composition import BatchReader
from softleak.labels.otherwise import is_sign_pattern

OF_ONE_SAMPLE = (Leak.LABEL, Leak.CLASS, Leak.FEATURE)


def wrong_unique(report: AuditReport, sent: Sent) -> bool:
    """Return whether a label was called unique and is further from the truth than its bound."""
    return report.label.proved == "UNIQUE" and _outcome(report, sent) in FAILURES


def wrong_claims(subject: Subject, report: AuditReport, sent: Sent) -> tuple[str, ...]:
    """Return what else was claimed as proved and is not true."""
    proved, found = report.label.proved, report.composition
    tops = {int(y.argmax()) for y in sent.data.y}
    held = set((sent.data.y > 0).any(0).nonzero()[:, 0].tolist())
    readings = (found.present, *([found.otherwise] if found.otherwise else []))
    named = proved in ("CLASS", "PROBABLE")
    feature, image = _feature_error(subject, report, sent), _psnr(subject, report, sent)
    claims = {
        "set of labels": proved == "AMBIGUOUS" and _outcome(report, sent) in FAILURES,
        "label": report.label.known and not _label_known(report, sent),
        "class": named and report.label.class_index not in tops,
        "classes": not any(set(present) <= held for present in readings),
        "counts": not _counts_hold(report, sent),
        "feature": report.feature.proved and LEAK_FEATURE_ERROR < feature < float("inf"),
        "input": report.input.leaked and image < LEAK_RECOGNISABLE,
    }
    return tuple(name for name, wrong in claims.items() if wrong)


def falsely_green(subject: Subject, report: AuditReport, sent: Sent) -> tuple[str, ...]:
    """Return what is called attacked without success but leaks, or was not attacked at all."""
    green = {leak for leak, state in report.states.items() if state is State.NO_SUCCESS}
    leaking = {
        Leak.LABEL: _label_known(report, sent),
        Leak.CLASS: _label_known(report, sent) and _has_a_class(sent),
        Leak.FEATURE: _feature_known(subject, report, sent),
        Leak.INPUT: _psnr(subject, report, sent) >= LEAK_RECOGNISABLE,
        Leak.COMPOSITION: _proves_classes(subject, sent),
    }
    untried = set(OF_ONE_SAMPLE) if _not_sought(subject, report, sent) else set()
    if report.input.method == Method.NONE:
        untried.add(Leak.INPUT)
    if not _could_prove_classes(subject, sent):
        untried.add(Leak.COMPOSITION)
    return tuple(
        f"{leak.value} ({'leaks' if leaking[leak] else 'not tried'})"
        for leak in Leak
        if leak in green and (leaking[leak] or leak in untried)
    )


def _outcome(report: AuditReport, sent: Sent) -> object:
    """Return how the adversary's judge rates the label."""
    told = "unknown" in (sent.options.knowledge.scale, sent.share.scale)
    return judge_label(report.label.recovery, sent.truth, told=told)


def _not_sought(subject: Subject, report: AuditReport, sent: Sent) -> bool:
    """Return whether such numbers do not allow to look for the label of one sample."""
    signs = is_sign_pattern(sent.share[subject.head.weight_name])
    several = subject.once(BatchReader.of).read(sent.share).gradients > 1
    guessed = report.label.recovery.status in (Status.GUESS, Status.NO_SOLUTION)
    return signs or (several and guessed) or report.label.recovery.status is Status.NOT_SINGLE


def _label_known(report: AuditReport, sent: Sent) -> bool:
    """Return whether the answer names a true label, within a small bound or as another reading.

    An answer that bounds its error by more than that says that it does not know.
    """
    found = report.label.recovery
    named = [one.label for one in found.readings]
    if found.label is not None and found.error <= LEAK_LABEL_ERROR:
        named.append(found.label)
    errors = [float((label.double() - y).abs().sum()) for label in named for y in sent.data.y]
    return min(errors, default=float("inf")) <= LEAK_LABEL_ERROR


def _has_a_class(sent: Sent) -> bool:
    """Return whether the top class of a label stands out by more than the label may be off."""
    top = sent.data.y.topk(2).values
    return bool((top[:, 0] - top[:, 1] > LEAK_LABEL_ERROR).any())


def _feature_known(subject: Subject, report: AuditReport, sent: Sent) -> bool:
    """Return whether the answer holds the true feature and says so."""
    found = report.label.recovery
    alone = found.status in (Status.UNIQUE, Status.PROBABLE) or len(found.solutions) == 1
    return (
        alone
        and found.feature_error <= LEAK_FEATURE_ERROR
        and _feature_error(subject, report, sent) <= LEAK_FEATURE_ERROR
    )


def _feature_error(subject: Subject, report: AuditReport, sent: Sent) -> float:
    """Return the relative error of the feature; infinite if there is none."""
    found = report.label.recovery.feature
    if found is None:
        return float("inf")
    true = _features(subject, sent.data.x)
    return float(((found.double() - true).norm(dim=1) / true.norm(dim=1)).min())


def _features(subject: Subject, x: Tensor) -> Tensor:
    """Return what enters the head, (B, I) in float64."""
    seen: list[Tensor] = []
    head = subject.model.get_submodule(subject.head.weight_name.rpartition(".")[0])
    handle = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].double()))
    with torch.no_grad():
        subject.model(x)
    handle.remove()
    return seen[0]


def _psnr(subject: Subject, report: AuditReport, sent: Sent) -> float:
    """Return the PSNR of the image in dB; minus infinity if there is none or several samples."""
    if report.input.pixels is None or len(sent.data.x) > 1:
        return -float("inf")
    told = Told(None, sent.data.x[0]).fitted(subject.head.classes, subject.input_shape)
    score = told.score(report.label.recovery, report.input, None).psnr
    return -float("inf") if score is None else score


def _could_prove_classes(subject: Subject, sent: Sent) -> bool:
    """Return whether signs say anything: there is a bias, or features are never negative.

    The reader gives up on a head's gradient with noise, whose columns do not sum to zero.
    """
    head = subject.head
    if "carries noise" in subject.once(BatchReader.of).read(sent.share).message:
        return False
    told = head.has_bias and head.bias_name in sent.share
    return told or subject.once(BatchReader.of).never_negative


def _proves_classes(subject: Subject, sent: Sent) -> bool:
    """Return whether the reader of batches proves a true class of the same share."""
    held = set((sent.data.y > 0).any(0).nonzero()[:, 0].tolist())
    share = replace(sent.share, scale=None)
    readings = (subject.once(BatchReader.of).read(one).present for one in (share, share.scaled(-1)))
    return any(present and set(present) <= held for present in readings)


def _counts_hold(report: AuditReport, sent: Sent) -> bool:
    """Return whether the true number of samples per class is within the bounds."""
    counts = report.composition.counts
    if counts is None or not counts.low:
        return True
    true = sent.data.y.sum(0).tolist()
    bounds = zip(counts.low, true, counts.high, strict=True)
    return all(low <= round(n) <= high for low, n, high in bounds)
