"""What the options of ``softleak audit`` ask for, carried out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
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
from softleak.audit.folder import audit_files, fingerprint, recorded_shape, share_files
from softleak.audit.sample import NORMALISATION, sample_shares
from softleak.audit.truth import Truth
from softleak.audit.whatif import Target, stages, what_if
from softleak.cli import parse
from softleak.data import embedded
from softleak.environment import versions
from softleak.errors import DataError, ModelError, SoftleakError
from softleak.precheck import shown
from softleak.share import GradientShare

Step = Callable[[str, int], None]
TRIED = 4  # shares that defences are tried on


@dataclass(frozen=True)
class Request:
    """The options as they were given."""

    model: str | None
    weights: Path | None
    share: Path | None
    before: Path | None
    after: Path | None
    lr: float | None
    each: int
    seed: int
    input_shape: str | None
    classes: str | None
    normalise: str | None
    options: Options
    train_mode: bool
    truth: Path | None
    seeds: int  # of what-if; none if nobody asks
    command: str

    @property
    def of_an_update(self) -> bool:
        """Whether something was said that only an update of one's own has."""
        said = (self.model, self.weights, self.truth, self.classes, self.normalise)
        return self.train_mode or _any_given(*said, self.input_shape)

    @property
    def of_checkpoints(self) -> bool:
        """Whether something was said of two checkpoints."""
        return _any_given(self.before, self.after, self.lr)

    @property
    def files(self) -> tuple[Path, ...]:
        """What is read, the shares of a folder apart."""
        given = (self.weights, self.before, self.after, self.share, self.truth)
        return tuple(path for path in given if path is not None and path.is_file())


def _any_given(*options: object) -> bool:
    return any(option is not None for option in options)


def run(request: Request, step: Step) -> Audit:
    """Audit what was asked for: files, two checkpoints, or the embedded sample."""
    if request.share is None and not request.of_checkpoints:
        if request.of_an_update:
            raise SoftleakError("say which update to audit: --share, or --before, --after and --lr")
        return _sample(request, step)
    if request.model is None:
        raise SoftleakError("say which model the update is of: --model NAME or MODULE:FACTORY")
    names = parse.class_names(request.classes)
    subject, model = _subject(request, len(names) or None), request.model
    if names and len(names) != subject.head.classes:
        raise DataError(f"got {len(names)} class names for {subject.head.classes} classes")
    asked = replace(request.options, normalisation=parse.normalisation(request.normalise))
    if request.share is None:
        named = _update(request, subject, asked)
        reports = tuple(audit_shares(subject, [named], asked, lambda name: step(name, 1)))
        return _audit(request, subject, model, names, reports, (), [named], asked, step)
    if request.of_checkpoints:
        raise SoftleakError("give --share, or --before, --after and --lr, not both")
    reports, refused = _files(request, request.share, subject, asked, step)
    shares = _again(request, subject, reports, asked) if request.seeds else []
    return _audit(request, subject, model, names, reports, refused, shares, asked, step)


def _audit(
    request: Request, subject: Subject, model: str, names: tuple[str, ...],
    reports: tuple[AuditReport, ...], refused: tuple[Refusal, ...],
    shares: Sequence[NamedShare], options: Options, step: Step,
) -> Audit:  # fmt: skip
    inputs = tuple((path.name, fingerprint(path)) for path in request.files)
    found = tuple(f"{r.parameter}: {r.explanation}" for r in subject.relations)
    provenance = Provenance(request.command, versions(), inputs)
    tried = None
    by_name = {report.name: report for report in reports if report.telling}
    worth = [share for share in shares if share.name in by_name][:TRIED] if request.seeds else []
    if worth:
        targets = [Target.of(share, by_name[share.name]) for share in worth]
        count = stages()
        step("", count)
        tried = what_if(subject, targets, options, request.seeds, lambda name: step(name, count))
    return Audit(reports, refused, names, model, found, provenance, tried)


def _again(
    request: Request, subject: Subject, reports: Sequence[AuditReport], options: Options
) -> list[NamedShare]:
    """The first shares that gave something away, read once more."""
    if request.share is None:
        return []
    by_name = {shown(path.name): path for path in share_files(request.share)}
    return [
        NamedShare(r.name, prepared(subject, GradientShare.load(by_name[r.name]), options))
        for r in [report for report in reports if report.telling][:TRIED]
    ]


def _subject(request: Request, classes: int | None) -> Subject:
    """The model made ready, for inputs as the user says, else the share, else the model itself."""
    said = parse.input_shape(request.input_shape)
    model, own = parse.build_model(request.model or "", classes, said)
    if request.weights is not None:
        models.load_weights(model, request.weights)
    model.train(request.train_mode)
    make = partial(Subject.of, model, inputs=request.options.inputs)
    if said is None and request.share is not None:
        recorded = recorded_shape(share_files(request.share))
        with suppress(ModelError):  # a file may claim what the model does not take
            return make(recorded or own)
    return make(own)


def _files(
    request: Request, share: Path, subject: Subject, options: Options, step: Step
) -> tuple[tuple[AuditReport, ...], tuple[Refusal, ...]]:
    paths = share_files(share)
    step("", len(paths))
    found = list(
        audit_files(subject, paths, options, request.truth, lambda name: step(name, len(paths)))
    )
    refused = tuple(one for one in found if isinstance(one, Refusal))
    if refused and not share.is_dir():
        raise SoftleakError(refused[0].reason)
    return tuple(one for one in found if isinstance(one, AuditReport)), refused


def _update(request: Request, subject: Subject, options: Options) -> NamedShare:
    """The share behind two checkpoints."""
    if request.before is None or request.after is None or request.lr is None:
        raise SoftleakError("--before, --after and --lr belong together; give all three")
    share = GradientShare.from_update(request.before, request.after, lr=request.lr)
    truth = Truth() if request.truth is None else Truth.load(request.truth)
    fitted = truth.fitted(subject.head.classes, subject.input_shape)
    name = f"{request.before.name} → {request.after.name}"
    known = None if request.truth is None else fitted
    return NamedShare(name, prepared(subject, share, options), known)


def _sample(request: Request, step: Step) -> Audit:
    """The embedded sample: everything that is proved, and the truth beside it."""
    model: nn.Module = models.trained_lenet()
    subject = Subject.of(model, (3, 32, 32), inputs=request.options.inputs)
    shares = list(sample_shares(request.each, request.seed))
    asked = replace(request.options, normalisation=NORMALISATION)
    step("", len(shares))
    reports = tuple(audit_shares(subject, shares, asked, lambda name: step(name, len(shares))))
    name, classes = "the trained LeNet that comes with softleak", embedded().class_names
    return _audit(
        request, subject, name, classes, reports, (), shares[:: request.each], asked, step
    )
