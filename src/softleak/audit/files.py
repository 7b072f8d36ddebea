"""Audit update files, one or a folder of them. Each is read and hashed once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from torch import Tensor, nn

from softleak import io as tensor_files
from softleak.audit.options import Options
from softleak.audit.report import AuditReport, Refusal
from softleak.audit.run import NamedShare, Progress, audit_shares, prepared
from softleak.audit.truth import Truth
from softleak.core.errors import FileError, ShareError, SoftleakError
from softleak.core.input_spec import Layout, entries
from softleak.core.share import GradientShare, LocalTraining
from softleak.core.subject import Subject
from softleak.core.vocabulary import Precision, UpdateKind
from softleak.io.formats import Content, fingerprint
from softleak.io.untrusted import shown
from softleak.io.weights import own_weights


@dataclass(frozen=True)
class UpdateReading:
    """How update files are to be read.

    Attributes:
        kind: what the files hold; without it they are read as gradients of any sign and scale.
        lr: the learning rate of the step. Without it the scale of a difference of weights is
            unknown.
        client: the local training behind a difference of weights, in place of ``lr``.
        precision: the coarsest number format the client computed in, as with autocast.
    """

    kind: UpdateKind | None = None
    lr: float | None = None
    precision: Precision | None = None
    client: LocalTraining | None = None

    def share(self, held: Content, model: nn.Module) -> GradientShare:
        """Return the update that a file holds, for a model with the weights before the step."""
        return self._in_precision(self._share(held, model))

    def between(self, before: Content, after: Content, model: nn.Module) -> GradientShare:
        """Return the update between two checkpoints of a model."""
        old, new = (own_weights(held.tensors, model) for held in (before, after))
        return self._in_precision(self._step(old, new))

    def _step(self, old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> GradientShare:
        """Return the update between weights before and after a step; raises if they are equal."""
        share = GradientShare.from_update(old, new, lr=self.lr, client=self.client)
        if not any(share.largest(name) != 0 for name in share):
            raise ShareError(
                "expected weights after a step, got weights that equal those before it, so there "
                "is no update to audit; check which file is which"
            )
        return share

    def _in_precision(self, share: GradientShare) -> GradientShare:
        return share if self.precision is None else replace(share, precision=self.precision)

    def _share(self, held: Content, model: nn.Module) -> GradientShare:
        if self.kind is None:
            return GradientShare.of_file(held)
        if self.kind is UpdateKind.GRADIENT:
            share = GradientShare.of_file(held)
            return replace(share, scale=share.scale or "known")
        tensors = own_weights(held.tensors, model)
        start = model.state_dict()
        if self.kind is UpdateKind.DELTA and self.client is not None:
            # The weights before tell how a difference was rounded.
            ends = {n: start[n].double() + d for n, d in tensors.items() if n in start}
            share = GradientShare.from_update(start, ends, client=self.client)
            return replace(share, input_shape=held.input_shape)
        if self.kind is UpdateKind.DELTA:
            share = GradientShare.from_delta(tensors, lr=self.lr)
        else:
            share = self._step(start, tensors)
        return replace(share, input_shape=held.input_shape)


AS_GRADIENTS = UpdateReading()


@dataclass(frozen=True)
class FolderLimits:
    """Bounds on what a folder of strangers' files may cost.

    Attributes:
        shares: how many shares are held in memory at once.
        held_bytes: how many bytes of gradients are held in memory at once.
        recorded_input: the most entries of an input that a file may have the model tried on.
    """

    shares: int = 256
    held_bytes: int = 1 << 29
    recorded_input: int = 1 << 20


USUAL_LIMITS = FolderLimits()


def share_files(path: Path) -> list[Path]:
    """Return the file, or those of a folder in the order of their names; a sharded file is one."""
    if not os.path.isdir(path) or tensor_files.is_checkpoint_folder(path):  # os takes any name
        return [path]
    found = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
    if not found:
        raise FileError(
            f"the folder {shown(path.name)} holds no files; expected {tensor_files.ENDINGS}"
        )
    return found


@dataclass(frozen=True, eq=False)
class UpdateFiles:
    """The update files of one audit.

    What ``recorded_shape`` has to read early is kept for ``audited``, which lets it go.

    Attributes:
        paths: the files, in the order in which they are audited.
        reading: what the files are said to hold.
        truth: a file of truth for every update, or a folder with one per update.
    """

    paths: Sequence[Path]
    reading: UpdateReading = AS_GRADIENTS
    truth: Path | None = None
    limits: FolderLimits = USUAL_LIMITS
    _early: dict[Path, Content | SoftleakError] = field(default_factory=dict, repr=False)

    def recorded_shape(self) -> Layout | None:
        """Return the input shape that the first readable file records, if it is a usual one."""
        for path in self.paths:
            try:
                self._early[path] = held = tensor_files.load(path)
            except SoftleakError as error:
                self._early[path] = error
            else:
                shape = held.input_shape
                usual = shape is not None and entries(shape) <= self.limits.recorded_input
                return shape if usual else None
        return None

    def audited(
        self, subject: Subject, options: Options, progress: Progress = lambda _: None
    ) -> Iterator[tuple[NamedShare, AuditReport] | Refusal]:
        """Yield each share with its report, or why a file was refused, a batch at a time."""
        for batch, refused in self._batches(subject, options):
            for refusal in refused:
                progress(refusal.name)
                yield refusal
            yield from zip(batch, audit_shares(subject, batch, options, progress), strict=True)
            options = replace(options, views=False)  # a page of more would be no help

    def _batches(
        self, subject: Subject, options: Options
    ) -> Iterator[tuple[list[NamedShare], list[Refusal]]]:
        batch: list[NamedShare] = []
        refused: list[Refusal] = []
        held, truth = 0, _truths(self.truth, subject)
        for path in self.paths:
            name = shown(path.name)
            try:
                share = self.reading.share(self._content(path), subject.model)
                ready = prepared(subject, share, options)
                batch.append(NamedShare(name, ready, truth(path), fingerprint(path)))
                held += sum(g.numel() * g.element_size() for g in ready.values())
            except SoftleakError as error:
                refused.append(Refusal(name, str(error)))
            if len(batch) >= self.limits.shares or held >= self.limits.held_bytes:
                yield batch, refused
                batch, refused, held = [], [], 0
        yield batch, refused

    def _content(self, path: Path) -> Content:
        held = self._early.pop(path, None) or tensor_files.load(path)
        if isinstance(held, SoftleakError):
            raise held
        return held


def audit_files(
    subject: Subject,
    paths: Sequence[Path],
    options: Options,
    truth: Path | None = None,
    progress: Progress = lambda _: None,
    reading: UpdateReading = AS_GRADIENTS,
) -> Iterator[AuditReport | Refusal]:
    """Yield a report or a refusal of each file.

    Args:
        subject: the model, made ready.
        paths: the update files.
        options: what the audit is asked for, and what is known beforehand.
        truth: a file of truth for every update, or a folder with one per update.
        progress: is told the name of each file when its turn comes.
        reading: what the files are said to hold.
    """
    for found in UpdateFiles(paths, reading, truth).audited(subject, options, progress):
        yield found if isinstance(found, Refusal) else found[1]


def _truths(path: Path | None, subject: Subject) -> Callable[[Path], Truth | None]:
    """Return a function that finds the truth of an update file, fitted to the model."""

    def fitted(file: Path) -> Truth:
        return Truth.load(file).fitted(subject.head.classes, subject.input_shape)

    if path is None:
        return lambda _: None
    if not path.is_dir():
        once = cache(fitted)
        return lambda _: once(path)
    by_name = {file.stem: file for file in sorted(path.iterdir())}
    return lambda share: fitted(by_name[share.stem]) if share.stem in by_name else None
