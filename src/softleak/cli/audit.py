"""Carry out ``softleak audit``: files in; tables, a page and an exit code out.

First from options to an audit of files, two checkpoints or the sample, then its outputs.
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, cast

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text
from torch import Tensor, nn

from softleak import io as tensor_files
from softleak.audit.leaks import Leak
from softleak.audit.metrics import Truth
from softleak.audit.options import NO_NAMES, Options, TokenNames
from softleak.audit.report import Audit, AuditReport, Provenance, Refusal
from softleak.audit.run import (
    NamedShare,
    UpdateFiles,
    UpdateReading,
    audit_shares,
    prepared,
    share_files,
    unread,
)
from softleak.audit.sweeps import Asked
from softleak.audit.whatif import Target, hiding_of, stages, what_if
from softleak.bounds.hidden import COSINE, Hiding
from softleak.cli.exits import Exit, counting_bar, mistakes
from softleak.cli.options import Request
from softleak.core.client import Client, capture
from softleak.core.environment import code_digest, now, versions
from softleak.core.errors import DataError, FileError, ModelError, SoftleakError
from softleak.core.forward import accepted_shapes
from softleak.core.head import Head
from softleak.core.input_spec import Layout
from softleak.core.knowledge import Knowledge
from softleak.core.loss import named_loss
from softleak.core.share import LocalTraining
from softleak.core.subject import Subject
from softleak.core.vocabulary import Precision
from softleak.defenses.dpsgd import PrivateTraining
from softleak.io.adapters import is_adapter, with_adapters
from softleak.io.atomic import make_folder
from softleak.io.formats import Content, fingerprint, tensor_digest
from softleak.io.untrusted import check_file, shown
from softleak.io.weights import copy_weights, match, own_weights
from softleak.labels.evidence.probes import evidence_of
from softleak.paper import data, models
from softleak.paper.data import LARGEST_CLASS_COUNT, embedded
from softleak.present.bounds import hiding_words
from softleak.present.dossier import write_dossier
from softleak.present.machine import as_data, github, write_json, write_junit, write_sarif
from softleak.present.page import write_page
from softleak.present.terminal import audit_table, closing_words, refusal_table, what_if_table

NORMALISATIONS: Mapping[str, data.Normalisation] = {
    "cifar10": data.CIFAR10_NORM,
    "imagenet": data.IMAGENET_NORM,
}
LARGEST_INPUT_SHAPE = 1 << 24  # entries of one input


def input_shape(text: str | None) -> tuple[int, ...] | None:
    """Return the input shape that a text such as ``3,32,32`` means."""
    if text is None:
        return None
    try:
        shape = tuple(int(part) for part in text.lower().replace("x", ",").split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1 or math.prod(shape) > LARGEST_INPUT_SHAPE:
        raise DataError(f"expected an input shape such as 3,32,32; got {text!r}")
    return shape


def client(text: str | None) -> LocalTraining | None:
    """Return the client that settings such as ``lr=0.01,steps=5``, or a file of them, describe."""
    if text is None:
        return None
    path = Path(text)
    if "=" not in text:
        if not os.path.isfile(path):
            raise DataError(
                f"expected settings such as lr=0.01,steps=5, or a file of them; got {text!r}"
            )
        check_file(path)
        text = path.read_text("utf-8", errors="replace")
    described = Client.parse(text)
    if not described.trains:
        raise DataError("a client that sends weights has a learning rate: say lr=0.01, or lr=?")
    return described.training


def private_training(text: str | None) -> PrivateTraining:
    """Return the training that settings such as ``rate=0.01,steps=1000`` describe."""
    training = PrivateTraining(**settings(text, "clip=1,rate=0.01,steps=1000,delta=1e-5"))
    training.dpsgd(1.0, 1.0 if training.clip is None else training.clip)  # checks the settings
    return training


def settings(text: str | None, such: str) -> dict[str, Any]:
    """Return the numbers that a text such as ``such`` names; counts are whole there."""
    names = {one.partition("=")[0] for one in such.split(",")}
    said: dict[str, Any] = {}
    for part in text.split(",") if text else ():
        name, _, value = part.strip().partition("=")
        try:
            said[name] = int(value) if name in ("steps", "rounds") else float(value)
        except ValueError:
            name = ""
        if name not in names:
            raise DataError(f"expected settings such as {such}; got {part.strip()!r}")
    return said


def class_names(text: str | None) -> tuple[str, ...]:
    """Return the lines of a file, or ``class 0``, ``class 1``, … for a number of classes."""
    if text is None:
        return ()
    if text.isdecimal():
        if len(text) > len(str(LARGEST_CLASS_COUNT)) or not 2 <= int(text) <= LARGEST_CLASS_COUNT:
            raise DataError(f"expected 2 to {LARGEST_CLASS_COUNT:,} classes, got {text[:20]}")
        return tuple(f"class {i}" for i in range(int(text)))
    path = Path(text)
    if not os.path.isfile(path):
        raise DataError(f"expected a file of class names, one per line, or a number; got {text!r}")
    try:
        lines = (line.strip() for line in path.read_text("utf-8").splitlines())
        return tuple(shown(line) for line in lines if line)
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name} is not a text file in UTF-8") from error


def normalisation(text: str | None) -> data.Normalisation | None:
    """Return what ``cifar10``, ``imagenet`` or ``0.5,0.5,0.5/0.2,0.2,0.2`` means."""
    if text is None or text in NORMALISATIONS:
        return NORMALISATIONS[text] if text else None
    try:
        mean, std = (tuple(float(v) for v in part.split(",")) for part in text.split("/"))
    except ValueError as error:
        known = ", ".join(NORMALISATIONS)
        raise DataError(
            f"expected mean/std such as 0.5,0.5,0.5/0.2,0.2,0.2, or {known}; got {text!r}"
        ) from error
    return data.Normalisation(mean, std)


def build_model(
    text: str, classes: int | None, shape: tuple[int, ...] | None
) -> tuple[nn.Module, tuple[int, ...] | None]:
    """Return a model of ours by name, or one by ``package.module:factory``, and its input shape."""
    if text in models.MODELS:
        spec = models.MODELS[text]
        wanted: dict[str, int] = {} if classes is None else {"classes": classes}
        if shape is not None and len(shape) == 3:
            wanted |= {"in_channels": shape[0], "image": shape[1]}
        takes = inspect.signature(spec.factory).parameters
        own = spec(**{name: value for name, value in wanted.items() if name in takes})
        return own, shape or spec.input_shape
    if ":" not in text:
        known = ", ".join(models.MODELS)
        raise ModelError(f"expected {known} or package.module:factory; got {text!r}")
    made = named_object(text)
    try:
        model = made if isinstance(made, nn.Module) else made()
    except Exception as error:  # the user's own code may raise anything
        raise ModelError(f"could not make a model of {text!r}: {error!r}") from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"{text!r} should make an nn.Module, made a {type(model).__name__}")
    return model, shape


def named_object(text: str) -> Any:  # noqa: ANN401 - whatever the user's module holds
    """Return the object that ``package.module:name`` names, beside the user or installed."""
    module_name, _, attribute = text.partition(":")
    if module_name.endswith(".py"):
        dotted = ".".join(Path(module_name).with_suffix("").parts)
        raise ModelError(
            f"expected a module and not a file before the colon, got {text!r}; "
            f"write {dotted}:{attribute}, from the folder that {dotted.split('.')[0]} is in"
        )
    # A console script does not see modules beside the user, as `python -m` would.
    sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # the user's own code may raise anything
        raise ModelError(f"could not import {text!r}: {error!r}") from error
    finally:
        sys.path.pop(0)


RANDOM_WEIGHTS = (
    "The model's weights were drawn at random, as --random-weights asks: this verdict holds only "
    "if the update was computed with these very weights."
)


def ready(
    request: Request, classes: int | None, files: UpdateFiles
) -> tuple[Subject, Content, tuple[str, ...]]:
    """Return the model made ready, what the file of its weights held, and cautions of the verdict.

    Inputs have the shape that the user says, else the update, else the model itself.
    """
    said = input_shape(request.input_shape)
    again = partial(build_model, request.model or "", classes, said)
    model, own = again()
    model = with_adapters(model, request.before or request.weights)
    held, cautions = _weights(request, model, lambda: again()[0])
    model.train(request.train_mode)
    if said is None and files.paths:
        with suppress(ModelError):  # a file may claim what the model does not take
            shape = files.recorded_shape() or own
            return _subject(model, request.head, shape), held, cautions
    return _subject(model, request.head, own), held, cautions


def _subject(model: nn.Module, head: str | None, shape: Layout | None) -> Subject:
    """Return the model made ready; if its input shape is unknown, the named head is trusted."""
    unknown = shape is None and next(accepted_shapes(model), None) is None
    return Subject.of(model, shape, head=Head.of(model, head) if head and unknown else head)


def _weights(
    request: Request, model: nn.Module, again: Callable[[], nn.Module]
) -> tuple[Content, tuple[str, ...]]:
    """Load the weights before the step; return what their file held, and cautions."""
    path = request.before or request.weights
    if path is None:
        other = again().state_dict()
        if all(torch.equal(tensor, other[name]) for name, tensor in model.state_dict().items()):
            return Content({}), ()  # a factory that makes others every time was no client's
        if request.random_weights:
            return Content({}), (RANDOM_WEIGHTS,)
        raise ModelError(
            f"{request.model} comes with random weights, and an update says nothing without the "
            "weights it was computed with: give --weights FILE (or --before FILE); "
            "--random-weights audits random ones all the same"
        )
    held, fixed = tensor_files.load(path), {n: t.clone() for n, t in model.state_dict().items()}
    copy_weights(model, held.tensors, path.name)
    cautions = _rest(request, model, fixed, again, own_weights(held.tensors, model))
    if request.weights is not None and path is not request.weights:
        _check_same(model, request.weights, path)
    return replace(held, remarks=(*held.remarks, *match(held.tensors, model)[1])), cautions


def _rest(
    request: Request, model: nn.Module, fixed: Mapping[str, Tensor], again: Callable[[], nn.Module],
    given: Mapping[str, Tensor],
) -> tuple[str, ...]:  # fmt: skip
    """Return cautions on what a file of adapters leaves as the model was made."""
    if not all(map(is_adapter, given)):
        return ()
    other = with_adapters(again(), request.before or request.weights).state_dict()
    if all(torch.equal(fixed[n], other[n]) for n in fixed if not is_adapter(n)):
        return ()
    if request.random_weights:
        return (RANDOM_WEIGHTS,)
    raise ModelError(
        f"{request.model} comes with random weights, and adapters say nothing without the weights "
        "beneath them: have the model made with its own weights; --random-weights audits random "
        "ones all the same"
    )


def _check_same(model: nn.Module, weights: Path, before: Path) -> None:
    """Raise ``ModelError`` unless --weights, given with --before, holds the same weights."""
    own, held = model.state_dict(), own_weights(tensor_files.load(weights).tensors, model)
    other = [n for n, t in held.items() if n in own and not torch.equal(t.to(own[n]), own[n])]
    if other:
        raise ModelError(
            f"{weights.name} and {before.name} hold different weights, first {other[0]!r}; the "
            "step began at --before, so leave out --weights"
        )


Step = Callable[[str, int], None]  # is told what is done next, and of how many steps
DEFENDED_SHARES = 4  # shares that defences are tried on
HIDDEN = 0.2  # the success of an attack below which a label counts as hidden
# The reports of an audit, the files refused, and shares to try defences on.
AuditedShares = tuple[Sequence[AuditReport], Sequence[Refusal], Sequence[NamedShare]]


def run(request: Request, step: Step) -> Audit:
    """Audit what was asked for, and tell ``step`` of every share and setting of a defence."""
    request.check()
    if request.of_the_sample:
        return _sample(request, step)
    names = class_names(request.classes)
    files = _update_files(request)
    subject, before, cautions = ready(request, len(names) or None, files)
    if names and len(names) != subject.head.classes:
        raise DataError(f"got {len(names)} class names for {subject.head.classes} classes")
    options = _options(request)
    reports, refused, shares = (
        _files(request, files, subject, options, step) if files.paths
        else _checkpoints(request, files, subject, before, options, step)
    )  # fmt: skip
    remarks = dict.fromkeys([*before.remarks, *(line for one in reports for line in one.remarks)])
    found = Audit(
        tuple(reports), tuple(refused), names, request.model or "", remarks=tuple(remarks),
        cautions=cautions,
    )  # fmt: skip
    return _completed(found, request, subject, shares, options, step)


def _update_files(request: Request) -> UpdateFiles:
    """Return the files of updates and how they are read; without files it is two checkpoints."""
    precision = None if request.precision is None else cast(Precision, request.precision.value)
    return UpdateFiles(
        request.kind, request.lr, precision, client(request.client),
        paths=() if request.share is None else share_files(request.share), truth=request.truth,
    )  # fmt: skip


def _options(request: Request) -> Options:
    knowledge = Knowledge(
        scale="unknown" if request.unknown_scale else None,
        noise=request.noise,
        samples=request.samples,
        is_gradient=request.kind is not None or request.before is not None,
        lr=request.lr,
        loss=None if request.loss is None else named_loss(request.loss.value),
    )
    tokens = NO_NAMES if request.tokenizer is None else TokenNames.load(request.tokenizer)
    return Options(
        knowledge, not request.labels_only, request.match_seconds,
        normalisation=normalisation(request.normalise), tokens=tokens,
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
        wanted = (request.what_if and report.telling) or request.prove_hidden
        if wanted and len(kept) < DEFENDED_SHARES:
            kept.append(share)
    if refused and list(files.paths) == [request.share]:
        raise SoftleakError(refused[0].reason)
    return reports, refused, kept


def _checkpoints(
    request: Request, reading: UpdateReading, subject: Subject, before: Content, options: Options,
    step: Step,
) -> AuditedShares:  # fmt: skip
    """Audit the update between two checkpoints."""
    if request.before is None or request.after is None:
        raise SoftleakError("--before and --after belong together; give both")
    after = tensor_files.load(request.after)
    share = reading.between(before, after, subject.model)
    truth = None if request.truth is None else Truth.load(request.truth)
    fitted = None if truth is None else truth.fitted(subject.head.classes, subject.input_shape)
    name = shown(f"{request.before.name} → {request.after.name}")
    sent = prepared(subject, share, options)
    remarks = unread(subject, after.tensors)
    shares = [NamedShare(name, sent, fitted, tensor_digest(sent), remarks)]
    reports = audit_shares(subject, shares, options, lambda name: step(name, 1))
    return tuple(reports), (), shares


SAMPLE_KINDS: Mapping[str, data.Augmentation] = {
    "one-hot": data.Hard(),
    "smoothed": data.Smoothing(),
    "mixed": data.Mixup(),
    "arbitrary": data.Dirichlet(),
}


def sample_shares(each: int, seed: int) -> Iterator[NamedShare]:
    """Yield ``each`` gradients for every kind of label, and the truth to score them by."""
    model, images = models.trained_lenet(), data.embedded()
    for number, (kind, augmentation) in enumerate(SAMPLE_KINDS.items()):
        drawn = data.samples(images, augmentation, each, seed + number, data.CIFAR10_NORM)
        for index, sample in enumerate(drawn, 1):
            share = capture(model, sample.x, sample.y)
            digest, truth = tensor_digest(share), Truth(sample.y, sample.x)
            yield NamedShare(f"{kind} {index}", share, truth, digest)


def _sample(request: Request, step: Step) -> Audit:
    """Audit the embedded sample, with the truth to score the answers."""
    subject = Subject.of(models.trained_lenet(), (3, 32, 32))
    shares = list(sample_shares(request.each, request.seed))
    options = replace(_options(request), normalisation=data.CIFAR10_NORM)
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
        groups = frozenset(request.defences) if request.defences else None
        asked = Asked(groups, private_training(request.dp_sgd))
        if request.lr is not None:
            asked = replace(asked, lr=request.lr)
        count = stages(subject, asked)
        step("", count)
        tried = what_if(
            subject, targets, options, request.seeds, lambda name: step(name, count), asked
        )
    hiding = tuple(_hiding(request, subject, found, shares, options))
    return replace(found, evidence=evidence, provenance=provenance, what_if=tried, hiding=hiding)


def _hiding(
    request: Request, subject: Subject, found: Audit, shares: Sequence[NamedShare], options: Options
) -> Iterator[tuple[str, Hiding]]:
    """Yield by share which noise is proved to hide its label, if that was asked."""
    if request.prove_hidden is None:
        return
    asked = settings(request.prove_hidden, "label=0.2,cosine=0.9")
    reports = {report.name: report for report in found.reports}
    targets = [Target.of(s, reports[s.name]) for s in shares if s.name in reports]
    for target in targets[:DEFENDED_SHARES]:
        hiding = hiding_of(
            subject, target, options, asked.get("label", HIDDEN), asked.get("cosine", COSINE)
        )
        if hiding is not None:
            yield target.share.name, hiding


def _inputs(found: Audit, request: Request) -> tuple[tuple[str, str], ...]:
    """Return name and SHA-256 of each file; of a folder of updates the reports have them."""
    hashed = [(path.name, fingerprint(path)) for path in request.files if _is_one(path)]
    if request.share is not None and _is_one(request.share):
        hashed += [(request.share.name, report.fingerprint) for report in found.reports]
    return tuple(hashed)


def _is_one(path: Path) -> bool:
    """Return whether a path is one file or a sharded checkpoint, not a folder of files."""
    return path.is_file() or tensor_files.is_checkpoint_folder(path)


def check_outputs(request: Request) -> None:
    """Raise ``FileError`` if a file could not be written, or would replace another; write none."""
    if request.out.exists() and not request.out.is_dir():
        raise FileError(f"expected a folder for --out, found a file at {request.out}; name another")
    names = ["index.html", "audit.json"]
    names += ["dossier.html", "dossier.json"] if request.dossier else []
    named = [("--junit", request.junit), ("--sarif", request.sarif)]
    given = [(option, path) for option, path in named if path is not None]
    written = [*(("--out", request.out / name) for name in names), *given]
    sources = (*request.files, request.share, request.tokenizer)
    read = {path.resolve() for path in sources if path is not None}
    for option, path in written:
        if path.is_dir():
            raise FileError(
                f"expected a file for {option}, found a folder at {path}; name a file, for example "
                "one in that folder"
            )
        _check_folder(option, path.parent)
        if path.resolve() in read:
            raise FileError(f"{option} would replace {path}, which is read; name another file")
    _check_apart(written)


def _check_apart(written: Sequence[tuple[str, Path]]) -> None:
    """Raise if two files are one, or one of them is a folder of the other."""
    for (one, path), (other, second) in combinations(written, 2):
        place, beside = path.resolve(), second.resolve()
        if place == beside:
            raise FileError(f"{one} and {other} would both write {path}; name two files")
        if place in beside.parents or beside in place.parents:
            raise FileError(
                f"{one} would write {path} and {other} {second}: one of them cannot be a file and "
                "the folder of the other; name two files"
            )


def _check_folder(option: str, folder: Path) -> None:
    """Raise unless a folder can be written in, or made where the nearest one above it is."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise FileError(
            f"expected a folder at {there} for {option}, found a file; name another path"
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise FileError(f"cannot write in {there} for {option}; name a folder that is yours")


def carry_out(request: Request) -> None:
    """Audit what was asked for, write and show the answer, and end with an exit code."""
    with mistakes(f"Nothing was kept: {request.out} is written when the audit ends."):
        check_outputs(request)
        with _progress() as step:
            found = run(request, step)
        _write(request, found)
    _show(Console(stderr=request.printed != "table"), found, request)
    raise typer.Exit(exit_code(found, request.leaks_to_fail_on))


def exit_code(found: Audit, fail_on: frozenset[Leak]) -> Exit:
    """Return the exit code of an audit; a leak outweighs what could not be attacked.

    An update that contradicts what was stated could not be attacked as such, whatever was asked.
    """
    if not found.reports:
        return Exit.MISTAKE
    if any(report.leaks & fail_on for report in found.reports):
        return Exit.LEAK
    if any(report.unattacked & fail_on or not _attacked(report) for report in found.reports):
        return Exit.UNATTACKED
    return Exit.INCOMPLETE if found.refused else Exit.DONE


def _attacked(report: AuditReport) -> bool:
    """Return whether an update was attacked: its fit holds, and something was tried."""
    return report.fit.holds and bool(frozenset(Leak) - report.unattacked)


def _write(request: Request, found: Audit) -> None:
    out = request.out
    for folder in (out, *(path.parent for path in (request.junit, request.sarif) if path)):
        make_folder(folder)
    write_page(out / "index.html", found)
    write_json(out / "audit.json", found)
    if request.dossier:
        write_dossier(out, found)
    if request.junit is not None:
        write_junit(request.junit, found, request.leaks_to_fail_on)
    if request.sarif is not None:
        write_sarif(request.sarif, found)


def _show(console: Console, found: Audit, request: Request) -> None:
    if request.what_if and found.reports and found.what_if is None:
        console.print(
            "No attack recovered a label, feature or input, so there was nothing to try defences "
            "against."
        )
    if request.printed == "json":
        sys.stdout.write(json.dumps(as_data(found), allow_nan=False) + "\n")
        return
    if request.printed == "github":
        sys.stdout.write(github(found, request.leaks_to_fail_on))
        return
    console.print(audit_table(found))
    if found.refused:
        console.print(refusal_table(found))
    if found.what_if is not None:
        console.print(what_if_table(found.what_if))
    console.print(*map(Text, hiding_words(found)), sep="\n")
    console.print(closing_words(found))
    console.print(f"The page: {escape(str(request.out / 'index.html'))}", highlight=False)
    if request.dossier:
        where = escape(str(request.out / "dossier.html"))
        console.print(f"The dossier: {where}", highlight=False)


@contextmanager
def _progress() -> Iterator[Step]:
    """Show a bar that counts updates, then settings of defences."""
    with counting_bar("reading") as (bar, task):

        def step(name: str, total: int) -> None:
            if name:
                bar.update(task, description=escape(name), total=total, advance=1)
            else:  # something new begins
                bar.update(task, total=total, completed=0)

        yield step
