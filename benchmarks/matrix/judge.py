"""Whether a report is right, and whether what it shows in green is. Truth is read here alone."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.adversary.judge import FAILURES
from benchmarks.adversary.judge import judge as judge_label
from benchmarks.matrix.updates import Sent
from softleak.audit import AuditReport, Leak, Method, State, Subject
from softleak.audit import Truth as Told
from softleak.audit.findings import CLOSE, PRECISE, RECOGNISABLE, LabelLeak
from softleak.labels.signs import is_sign_pattern
from softleak.results import Status

OF_ONE = (Leak.LABEL, Leak.CLASS, Leak.FEATURE)


def wrong_unique(report: AuditReport, sent: Sent) -> bool:
    """Whether a label was called unique and is not the true one within its bound."""
    return report.label.leak is LabelLeak.UNIQUE and _outcome(report, sent) in FAILURES


def wrong_claims(subject: Subject, report: AuditReport, sent: Sent) -> tuple[str, ...]:
    """What else was claimed as proved and is not true."""
    leak, found = report.label.leak, report.composition
    tops = {int(y.argmax()) for y in sent.data.y}
    held = set((sent.data.y > 0).any(0).nonzero()[:, 0].tolist())
    readings = (found.present, *([found.otherwise] if found.otherwise else []))
    named = leak in (LabelLeak.CLASS, LabelLeak.PROBABLE)
    feature, image = _feature_error(subject, report, sent), _psnr(subject, report, sent)
    claims = {
        "set of labels": leak is LabelLeak.AMBIGUOUS and _outcome(report, sent) in FAILURES,
        "label": report.label.known and not _label_known(report, sent),
        "class": named and report.label.class_index not in tops,
        "classes": not any(set(present) <= held for present in readings),
        "counts": not _counts_hold(report, sent),
        "feature": report.feature.proved and PRECISE < feature < float("inf"),
        "input": report.input.leaked and image < RECOGNISABLE,
    }
    return tuple(name for name, wrong in claims.items() if wrong)


def falsely_green(subject: Subject, report: AuditReport, sent: Sent) -> tuple[str, ...]:
    """What is called attacked without success, and leaks, or was not attacked at all."""
    green = {leak for leak, state in report.states.items() if state is State.NO_SUCCESS}
    leaking = {
        Leak.LABEL: _label_known(report, sent),
        Leak.CLASS: _label_known(report, sent) and _has_a_class(sent),
        Leak.FEATURE: _feature_known(subject, report, sent),
        Leak.INPUT: _psnr(subject, report, sent) >= RECOGNISABLE,
        Leak.COMPOSITION: _proves_classes(subject, sent),
    }
    untried = set(OF_ONE) if _not_sought(subject, report, sent) else set()
    if report.input.method is Method.NONE:
        untried.add(Leak.INPUT)
    if not _could_prove_classes(subject, sent):
        untried.add(Leak.COMPOSITION)
    return tuple(
        f"{leak.value} ({'leaks' if leaking[leak] else 'not tried'})"
        for leak in Leak
        if leak in green and (leaking[leak] or leak in untried)
    )


def _outcome(report: AuditReport, sent: Sent) -> object:
    told = "unknown" in (sent.options.scale, sent.share.scale)
    return judge_label(report.label.recovery, sent.truth, told=told)


def _not_sought(subject: Subject, report: AuditReport, sent: Sent) -> bool:
    """Whether no label of one sample could be looked for in such numbers."""
    signs = is_sign_pattern(sent.share[subject.head.weight_name])
    several = subject.batch_reader.read(sent.share).gradients > 1
    guessed = report.label.recovery.status in (Status.GUESS, Status.NO_SOLUTION)
    return signs or (several and guessed) or report.label.recovery.status is Status.NOT_SINGLE


def _label_known(report: AuditReport, sent: Sent) -> bool:
    """Whether the answer names a true label: to within a small bound of its own, or as a reading.

    An answer that bounds its error by more than that says that it does not know.
    """
    found = report.label.recovery
    named = [one.label for one in found.readings]
    if found.label is not None and found.error <= CLOSE:
        named.append(found.label)
    errors = [float((label.double() - y).abs().sum()) for label in named for y in sent.data.y]
    return min(errors, default=float("inf")) <= CLOSE


def _has_a_class(sent: Sent) -> bool:
    """Whether the class on top of a label stands out by more than the label may be off."""
    top = sent.data.y.topk(2).values
    return bool((top[:, 0] - top[:, 1] > CLOSE).any())


def _feature_known(subject: Subject, report: AuditReport, sent: Sent) -> bool:
    """Whether the answer holds the true feature and says so."""
    found = report.label.recovery
    alone = found.status in (Status.UNIQUE, Status.PROBABLE) or len(found.solutions) == 1
    return (
        alone
        and found.feature_error <= PRECISE
        and _feature_error(subject, report, sent) <= PRECISE
    )


def _feature_error(subject: Subject, report: AuditReport, sent: Sent) -> float:
    found = report.label.recovery.feature
    if found is None:
        return float("inf")
    true = _features(subject, sent.data.x)
    return float(((found.double() - true).norm(dim=1) / true.norm(dim=1)).min())


def _features(subject: Subject, x: Tensor) -> Tensor:
    """(B, I) what enters the head, in float64."""
    seen: list[Tensor] = []
    head = subject.model.get_submodule(subject.head.weight_name.rpartition(".")[0])
    handle = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].double()))
    with torch.no_grad():
        subject.model(x)
    handle.remove()
    return seen[0]


def _psnr(subject: Subject, report: AuditReport, sent: Sent) -> float:
    """Of the image that was found, against the truth; nothing behind several samples."""
    if report.input.pixels is None or len(sent.data.x) > 1:
        return -float("inf")
    told = Told(None, sent.data.x[0]).fitted(subject.head.classes, subject.input_shape)
    score = told.score(report.label.recovery, report.input, None).psnr
    return -float("inf") if score is None else score


def _could_prove_classes(subject: Subject, sent: Sent) -> bool:
    """Whether the sign of a gradient says anything: by a bias, or by features never negative.

    The reader gives up on a head's gradient with noise, whose columns do not sum to zero.
    """
    head = subject.head
    if "carries noise" in subject.batch_reader.read(sent.share).message:
        return False
    return (head.has_bias and head.bias_name in sent.share) or subject.batch_reader.never_negative


def _proves_classes(subject: Subject, sent: Sent) -> bool:
    """Whether the reader of batches proves a true class of the same share."""
    held = set((sent.data.y > 0).any(0).nonzero()[:, 0].tolist())
    share = replace(sent.share, scale=None)
    readings = (subject.batch_reader.read(one).present for one in (share, share.scaled(-1)))
    return any(present and set(present) <= held for present in readings)


def _counts_hold(report: AuditReport, sent: Sent) -> bool:
    counts = report.composition.counts
    if counts is None or not counts.low:
        return True
    true = sent.data.y.sum(0).tolist()
    bounds = zip(counts.low, true, counts.high, strict=True)
    return all(low <= round(n) <= high for low, n, high in bounds)
