"""This module runs the audit that was asked for: of files, two checkpoints, or the sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from softleak import models, tensor_files
from softleak.auditing import (
    Audit,
    AuditReport,
    NamedShare,
    Options,
    Provenance,
    Refusal,
    UpdateReading,
    audit_shares,
    prepared,
)
from softleak.auditing.sample import NORMALISATION, sample_shares
from softleak.auditing.sweeps import Asked
from softleak.auditing.tensor_digest import tensor_digest
from softleak.auditing.token_names import NO_NAMES, TokenNames
from softleak.auditing.truth import Truth
from softleak.auditing.update_files import UpdateFiles, share_files
from softleak.auditing.whatif import Target, stages, what_if
from softleak.cli import parse
from softleak.cli.prepare import Ready, ready
from softleak.cli.request import Request
from softleak.data import embedded
from softleak.environment import code_digest, now, versions
from softleak.errors import DataError, SoftleakError
from softleak.knowledge import Knowledge
from softleak.labels.evidence.probes import evidence_of
from softleak.subject import Subject
from softleak.tensor_files import fingerprint
from softleak.untrusted_files import shown
from softleak.vocabulary import Precision

Step = Callable[[str, int], None]  # is told what is done next, and of how many steps
DEFENDED_SHARES = 4  # shares that defences are tried on


@dataclass(frozen=True, eq=False)
class AuditedShares:
    """This holds the reports of an audit, the files refused, and shares to try defences on."""

    reports: tuple[AuditReport, ...]
    shares: Sequence[NamedShare]
    refused: tuple[Refusal, ...] = ()


def run(request: Request, step: Step) -> Audit:
    """Audit what was asked for.

    Args:
        request: the options as they were given; raises ``SoftleakError`` if they contradict.
        step: is told of every share, and of every setting of a defence.
    """
    request.check()
    if request.of_the_sample:
        return _sample(request, step)
    names = parse.class_names(request.classes)
    paths = None if request.share is None else share_files(request.share)
    files = None if paths is None else UpdateFiles(paths, _reading(request), request.truth)
    made = ready(request, len(names) or None, files)
    subject = made.subject
    if names and len(names) != subject.head.classes:
        raise DataError(f"got {len(names)} class names for {subject.head.classes} classes")
    options = _options(request)
    done = (
        _checkpoints(request, made, options, step) if files is None
        else _files(request, files, subject, options, step)
    )  # fmt: skip
    found = Audit(
        done.reports, done.refused, names, request.model or "", remarks=made.remarks,
        cautions=made.cautions,
    )  # fmt: skip
    return _completed(found, request, subject, done.shares, options, step)


def _reading(request: Request) -> UpdateReading:
    precision = None if request.precision is None else cast(Precision, request.precision.value)
    return UpdateReading(request.kind, request.lr, precision, parse.client(request.client))


def _options(request: Request) -> Options:
    knowledge = Knowledge(
        scale="unknown" if request.unknown_scale else None,
        noise=request.noise,
        samples=request.samples,
        is_gradient=request.kind is not None or request.before is not None,
        lr=request.lr,
    )
    normalisation = parse.normalisation(request.normalise)
    tokens = NO_NAMES if request.tokenizer is None else TokenNames.load(request.tokenizer)
    return Options(
        knowledge, not request.labels_only, request.match_seconds, normalisation=normalisation,
        tokens=tokens,
    )  # fmt: skip


def _files(
    request: Request, files: UpdateFiles, subject: Subject, options: Options, step: Step
) -> AuditedShares:
    """Audit update files; of those that leak the first are kept, if defences are to be tried."""
    total = len(files.paths)
    step("", total)
    reports: list[AuditReport] = []
    refused: list[Refusal] = []
    kept: list[NamedShare] = []
    for found in files.audited(subject, options, lambda name: step(name, total)):
        if isinstance(found, Refusal):
            refused.append(found)
            continue
        share, report = found
        reports.append(report)
        if request.what_if and report.telling and len(kept) < DEFENDED_SHARES:
            kept.append(share)
    if refused and files.paths == [request.share]:
        raise SoftleakError(refused[0].reason)
    return AuditedShares(tuple(reports), kept, tuple(refused))


def _checkpoints(request: Request, made: Ready, options: Options, step: Step) -> AuditedShares:
    """Audit the update between two checkpoints."""
    if request.before is None or request.after is None or made.before is None:
        raise SoftleakError("--before and --after belong together; give both")
    subject, after = made.subject, tensor_files.load(request.after)
    share = _reading(request).between(made.before, after, subject.model)
    truth = None if request.truth is None else Truth.load(request.truth)
    fitted = None if truth is None else truth.fitted(subject.head.classes, subject.input_shape)
    name = shown(f"{request.before.name} → {request.after.name}")
    sent = prepared(subject, share, options)
    shares = [NamedShare(name, sent, fitted, tensor_digest(sent))]
    reports = audit_shares(subject, shares, options, lambda name: step(name, 1))
    return AuditedShares(tuple(reports), shares)


def _sample(request: Request, step: Step) -> Audit:
    """Audit the embedded sample, with the truth to score the answers."""
    subject = Subject.of(models.trained_lenet(), (3, 32, 32))
    shares = list(sample_shares(request.each, request.seed))
    options = replace(_options(request), normalisation=NORMALISATION)
    step("", len(shares))
    reports = tuple(audit_shares(subject, shares, options, lambda name: step(name, len(shares))))
    name, classes = "the trained LeNet that comes with softleak", embedded().class_names
    found = Audit(reports, (), classes, name)
    return _completed(found, request, subject, shares[:: request.each], options, step)


def _completed(
    found: Audit, request: Request, subject: Subject, shares: Sequence[NamedShare],
    options: Options, step: Step,
) -> Audit:  # fmt: skip
    """Return the audit with its provenance and, if asked for, defences tried on some shares."""
    evidence = tuple(f"{r.parameter}: {r.explanation}" for r in subject.once(evidence_of))
    hashes = (
        ("model weights", tensor_digest(subject.model.state_dict())),
        ("softleak code", code_digest()),
    )
    provenance = Provenance(
        request.command, versions(), _inputs(found, request), now(), hashes, request.auditor or ""
    )
    tried = None
    by_name = {report.name: report for report in found.reports if report.telling}
    worth = [share for share in shares if share.name in by_name][:DEFENDED_SHARES]
    if worth and request.what_if:
        targets = [Target.of(share, by_name[share.name]) for share in worth]
        asked = _asked(request)
        count = stages(subject, asked)
        step("", count)
        tried = what_if(
            subject, targets, options, request.seeds, lambda name: step(name, count), asked
        )
    return replace(found, evidence=evidence, provenance=provenance, what_if=tried)


def _asked(request: Request) -> Asked:
    """Return which defences are tried."""
    groups = frozenset(request.defences) if request.defences else None
    training = parse.private_training(request.dp_sgd)
    return Asked(groups, training) if request.lr is None else Asked(groups, training, request.lr)


def _inputs(found: Audit, request: Request) -> tuple[tuple[str, str], ...]:
    """Return name and SHA-256 of each file; of a folder of updates the reports have them."""
    hashed = [(path.name, fingerprint(path)) for path in request.files if _is_one(path)]
    if request.share is not None and _is_one(request.share):
        hashed += [(request.share.name, report.fingerprint) for report in found.reports]
    return tuple(hashed)


def _is_one(path: Path) -> bool:
    """Return whether a path is one file or a sharded checkpoint, not a folder of files."""
    return path.is_file() or tensor_files.is_checkpoint_folder(path)
