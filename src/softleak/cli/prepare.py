"""This module makes the model of an audit ready, with the weights the update started from."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from softleak import tensor_files
from softleak.auditing.update_files import UpdateFiles
from softleak.cli import parse
from softleak.cli.request import Request
from softleak.errors import ModelError
from softleak.head import Head
from softleak.input_shapes import accepted_shapes
from softleak.input_spec import Layout
from softleak.models.checkpoint import copy_weights, own_weights
from softleak.naming import match
from softleak.subject import Subject
from softleak.tensor_files import Content

RANDOM_WEIGHTS = (
    "The model's weights were drawn at random, as --random-weights asks: this verdict holds only "
    "if the update was computed with these very weights."
)


@dataclass(frozen=True, eq=False)
class Ready:
    """This holds a model made ready, and what has to be said of its weights.

    Attributes:
        subject: the model, with the weights before the step.
        remarks: how the file of weights was read.
        cautions: sentences that belong to the verdict.
        before: the content of the file given by --before, which the update is computed from.
    """

    subject: Subject
    remarks: tuple[str, ...]
    cautions: tuple[str, ...]
    before: Content | None


@dataclass(frozen=True, eq=False)
class LoadedWeights:
    """This holds what a file of weights held, and what has to be said of it."""

    remarks: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    held: Content | None = None


def ready(request: Request, classes: int | None, files: UpdateFiles | None) -> Ready:
    """Build the model, load the weights before the step, and probe it.

    Inputs have the shape that the user says, else the update, else the model itself.

    Args:
        request: the options as they were given.
        classes: the number of classes, if the user says it.
        files: the updates, if they are given as files.
    """
    said = parse.input_shape(request.input_shape)
    model, own = parse.build_model(request.model or "", classes, said)
    loaded = _weights(request, model, partial(_again, request, classes, said))
    model.train(request.train_mode)
    subject = None
    if said is None and files is not None:
        with suppress(ModelError):  # a file may claim what the model does not take
            subject = _subject(model, request.head, files.recorded_shape() or own)
    subject = subject or _subject(model, request.head, own)
    before = None if request.before is None else loaded.held
    return Ready(subject, loaded.remarks, loaded.cautions, before)


def _subject(model: nn.Module, head: str | None, shape: Layout | None) -> Subject:
    """Return the model made ready; if its input shape is unknown, the named head is trusted."""
    unknown = shape is None and next(accepted_shapes(model), None) is None
    return Subject.of(model, shape, head=Head.of(model, head) if head and unknown else head)


def _again(request: Request, classes: int | None, said: tuple[int, ...] | None) -> nn.Module:
    return parse.build_model(request.model or "", classes, said)[0]


def _weights(request: Request, model: nn.Module, again: partial[nn.Module]) -> LoadedWeights:
    """Load the weights before the step into the model."""
    path = request.before or request.weights
    if path is None:
        if not _drawn_at_random(model, again()):
            return LoadedWeights()
        if request.random_weights:
            return LoadedWeights(cautions=(RANDOM_WEIGHTS,))
        raise ModelError(
            f"{request.model} comes with random weights, and an update says nothing without the "
            "weights it was computed with: give --weights FILE (or --before FILE); "
            "--random-weights audits random ones all the same"
        )
    held = tensor_files.load(path)
    copy_weights(model, held.tensors, path.name)
    if request.weights is not None and path is not request.weights:
        _check_same(model, request.weights, path)
    return LoadedWeights((*held.remarks, *match(held.tensors, model).remarks), held=held)


def _drawn_at_random(model: nn.Module, again: nn.Module) -> bool:
    """Return whether a factory makes other weights every time, which no client can have had."""
    one, other = model.state_dict(), again.state_dict()
    return any(not torch.equal(tensor, other[name]) for name, tensor in one.items())


def _check_same(model: nn.Module, weights: Path, before: Path) -> None:
    """Raise ``ModelError`` unless --weights, given with --before, holds the same weights."""
    own, held = model.state_dict(), own_weights(tensor_files.load(weights).tensors, model)
    other = [n for n, t in held.items() if n in own and not torch.equal(t.to(own[n]), own[n])]
    if other:
        raise ModelError(
            f"{weights.name} and {before.name} hold different weights, first {other[0]!r}; the "
            "step began at --before, so leave out --weights"
        )
