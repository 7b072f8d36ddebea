"""What the options of ``softleak audit`` ask for, carried out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from torch import nn

from softleak import models
from softleak.audit import (
    Audit,
    AuditReport,
    NamedShare,
    Options,
    Provenance,
    Refusal,
    Subject,
    audit_shares,
    prepared,
)
from softleak.audit.folder import audit_files, fingerprint, share_files
from softleak.audit.sample import NORMALISATION, sample_shares
from softleak.audit.truth import Truth
from softleak.audit.whatif import Target, stages, what_if
from softleak.cli import parse
from softleak.cli.prepare import ready
from softleak.cli.request import Request
from softleak.data import embedded
from softleak.environment import versions
from softleak.errors import DataError, SoftleakError
from softleak.files import is_checkpoint_folder
from softleak.precheck import shown

Step = Callable[[str, int], None]
TRIED = 4  # shares that defences are tried on


def run(request: Request, step: Step) -> Audit:
    """Audit what was asked for: files, two checkpoints, or the embedded sample."""
    request.check()
    if request.of_the_sample:
        return _sample(request, step)
    names = parse.class_names(request.classes)
    made = ready(request, len(names) or None)
    subject = made.subject
    if names and len(names) != subject.head.classes:
        raise DataError(f"got {len(names)} class names for {subject.head.classes} classes")
    asked = replace(request.options, normalisation=parse.normalisation(request.normalise))
    refused: tuple[Refusal, ...] = ()
    if request.share is None:
        shares = [_update(request, subject, asked)]
        reports = tuple(audit_shares(subject, shares, asked, lambda name: step(name, 1)))
    else:
        reports, refused = _files(request, request.share, subject, asked, step)
        shares = _again(request, subject, reports, asked) if request.seeds else []
    found = Audit(
        reports, refused, names, request.model or "", remarks=made.remarks, cautions=made.cautions
    )
    return _completed(found, request, subject, shares, asked, step)


def _completed(
    found: Audit, request: Request, subject: Subject, shares: Sequence[NamedShare],
    options: Options, step: Step,
) -> Audit:  # fmt: skip
    """The audit with how to do it again and, if asked for, defences tried on some shares."""
    inputs = tuple((path.name, fingerprint(path)) for path in request.files if _is_one(path))
    evidence = tuple(f"{r.parameter}: {r.explanation}" for r in subject.relations)
    provenance = Provenance(request.command, versions(), inputs)
    tried = None
    by_name = {report.name: report for report in found.reports if report.telling}
    worth = [share for share in shares if share.name in by_name][:TRIED] if request.seeds else []
    if worth:
        targets = [Target.of(share, by_name[share.name]) for share in worth]
        count = stages()
        step("", count)
        tried = what_if(subject, targets, options, request.seeds, lambda name: step(name, count))
    return replace(found, evidence=evidence, provenance=provenance, what_if=tried)


def _is_one(path: Path) -> bool:
    """Whether a path is one file, or a checkpoint in several; not a folder of shares."""
    return path.is_file() or is_checkpoint_folder(path)


def _again(
    request: Request, subject: Subject, reports: Sequence[AuditReport], options: Options
) -> list[NamedShare]:
    """The first shares that gave something away, read once more."""
    if request.share is None:
        return []
    by_name, read = {shown(p.name): p for p in share_files(request.share)}, request.reading.share
    return [
        NamedShare(r.name, prepared(subject, read(by_name[r.name], subject.model), options))
        for r in [report for report in reports if report.telling][:TRIED]
    ]


def _files(
    request: Request, share: Path, subject: Subject, options: Options, step: Step
) -> tuple[tuple[AuditReport, ...], tuple[Refusal, ...]]:
    paths = share_files(share)
    step("", len(paths))
    found = list(
        audit_files(
            subject, paths, options, request.truth, lambda name: step(name, len(paths)),
            request.reading,
        )
    )  # fmt: skip
    refused = tuple(one for one in found if isinstance(one, Refusal))
    if refused and paths == [share]:
        raise SoftleakError(refused[0].reason)
    return tuple(one for one in found if isinstance(one, AuditReport)), refused


def _update(request: Request, subject: Subject, options: Options) -> NamedShare:
    """The share behind two checkpoints."""
    if request.before is None or request.after is None:
        raise SoftleakError("--before and --after belong together; give both")
    share = request.reading.between(request.before, request.after, subject.model)
    truth = None if request.truth is None else Truth.load(request.truth)
    fitted = None if truth is None else truth.fitted(subject.head.classes, subject.input_shape)
    name = shown(f"{request.before.name} → {request.after.name}")
    return NamedShare(name, prepared(subject, share, options), fitted)


def _sample(request: Request, step: Step) -> Audit:
    """The embedded sample: everything that is proved, and the truth beside it."""
    model: nn.Module = models.trained_lenet()
    subject = Subject.of(model, (3, 32, 32), inputs=request.options.inputs)
    shares = list(sample_shares(request.each, request.seed))
    asked = replace(request.options, normalisation=NORMALISATION)
    step("", len(shares))
    reports = tuple(audit_shares(subject, shares, asked, lambda name: step(name, len(shares))))
    name, classes = "the trained LeNet that comes with softleak", embedded().class_names
    found = Audit(reports, (), classes, name)
    return _completed(found, request, subject, shares[:: request.each], asked, step)
