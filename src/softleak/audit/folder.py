"""Update files, one or a folder of them: read a few at a time, the bad ones named."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from softleak import files
from softleak.audit.reading import Reading
from softleak.audit.reports import AuditReport, Refusal
from softleak.audit.run import NamedShare, Options, Progress, audit_shares, prepared
from softleak.audit.subject import Subject
from softleak.audit.truth import Truth
from softleak.errors import FileError, SoftleakError
from softleak.precheck import shown

MOST = 256  # shares held at once
LARGEST = 1 << 29  # bytes held at once
LARGEST_INPUT = 1 << 20  # entries of one input that a file may have a model tried on
AS_GRADIENTS = Reading()


def share_files(path: Path) -> list[Path]:
    """The file, or those of a folder, in the order of their names; a sharded file is one."""
    if not os.path.isdir(path) or files.is_checkpoint_folder(path):  # os takes any name
        return [path]
    found = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
    if not found:
        raise FileError(f"the folder {shown(path.name)} holds no files; expected {files.ENDINGS}")
    return found


def recorded_shape(paths: Sequence[Path]) -> tuple[int, ...] | None:
    """The shape of an input that the first readable share says, if it says a usual one."""
    for path in paths:
        with suppress(SoftleakError):
            shape = files.load(path).input_shape
            return shape if shape and math.prod(shape) <= LARGEST_INPUT else None
    return None


def audit_files(
    subject: Subject,
    paths: Sequence[Path],
    options: Options,
    truth: Path | None = None,
    progress: Progress = lambda _: None,
    reading: Reading = AS_GRADIENTS,
) -> Iterator[AuditReport | Refusal]:
    """A report or a refusal of each file, a batch at a time."""
    for batch, refused in _batches(subject, paths, options, _truths(truth), reading):
        for refusal in refused:
            progress(refusal.name)
            yield refusal
        yield from audit_shares(subject, batch, options, progress)
        options = replace(options, views=False)  # a page of more would be no help


def _batches(
    subject: Subject,
    paths: Sequence[Path],
    options: Options,
    truths: Mapping[str, Path],
    reading: Reading,
) -> Iterator[tuple[list[NamedShare], list[Refusal]]]:
    batch: list[NamedShare] = []
    refused: list[Refusal] = []
    held = 0
    for path in paths:
        try:
            share = prepared(subject, reading.share(path, subject.model), options)
            truth = _truth(truths, path, subject)
            batch.append(NamedShare(shown(path.name), share, truth, fingerprint(path)))
            held += sum(g.numel() * g.element_size() for g in share.values())
        except SoftleakError as error:
            refused.append(Refusal(shown(path.name), str(error)))
        if len(batch) >= MOST or held >= LARGEST:
            yield batch, refused
            batch, refused, held = [], [], 0
    yield batch, refused


ANY = ""  # where a single truth stands for every share


def _truths(path: Path | None) -> Mapping[str, Path]:
    """Files of truth by the name of the share they belong to, without its ending."""
    if path is None:
        return {}
    return {p.stem: p for p in sorted(path.iterdir())} if path.is_dir() else {ANY: path}


def _truth(truths: Mapping[str, Path], share: Path, subject: Subject) -> Truth | None:
    found = truths.get(share.stem) or truths.get(ANY)
    if found is None:
        return None
    return Truth.load(found).fitted(subject.head.classes, subject.input_shape)


def fingerprint(path: Path) -> str:
    """SHA-256 of a file, or of the files of a sharded one, one after the other."""
    digest = hashlib.sha256()
    for part in files.parts(path):
        with part.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
