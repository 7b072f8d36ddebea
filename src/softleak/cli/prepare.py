"""The model of an audit: built, given the weights the update started from, and made ready."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from softleak import files
from softleak.audit import Subject
from softleak.audit.folder import recorded_shape, share_files
from softleak.cli import parse
from softleak.cli.request import Request
from softleak.errors import ModelError
from softleak.models.checkpoint import copy_weights, own_weights
from softleak.naming import match

RANDOM = (
    "The model's weights were drawn at random, as --random-weights asks: this verdict holds only "
    "if the update was computed with these very weights."
)


@dataclass(frozen=True, eq=False)
class Ready:
    """A model made ready, and what has to be said of its weights."""

    subject: Subject
    remarks: tuple[str, ...]
    cautions: tuple[str, ...]


def ready(request: Request, classes: int | None) -> Ready:
    """Build the model, load the weights before the step, and probe it.

    Inputs have the shape that the user says, else the share, else the model itself.
    """
    said = parse.input_shape(request.input_shape)
    model, own = parse.build_model(request.model or "", classes, said)
    remarks, cautions = _weights(request, model, partial(_again, request, classes, said))
    model.train(request.train_mode)
    make = partial(
        Subject.of, model, inputs=request.options.inputs, head_name=request.head
    )  # fmt: skip
    if said is None and request.share is not None:
        recorded = recorded_shape(share_files(request.share))
        with suppress(ModelError):  # a file may claim what the model does not take
            return Ready(make(recorded or own), remarks, cautions)
    return Ready(make(own), remarks, cautions)


def _again(request: Request, classes: int | None, said: tuple[int, ...] | None) -> nn.Module:
    return parse.build_model(request.model or "", classes, said)[0]


def _weights(
    request: Request, model: nn.Module, again: partial[nn.Module]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Load the weights before the step; remarks on the file, and cautions on the verdict."""
    path = request.before or request.weights
    if path is None:
        if not _drawn_at_random(model, again()):
            return (), ()
        if request.random_weights:
            return (), (RANDOM,)
        raise ModelError(
            f"{request.model} comes with random weights, and an update says nothing without those "
            "it was computed with: give --weights FILE (or --before FILE); --random-weights audits "
            "random ones all the same"
        )
    held = files.load(path)
    copy_weights(model, held.tensors, path.name)
    if request.weights is not None and path is not request.weights:
        _check_same(model, request.weights, path)
    return (*held.remarks, *match(held.tensors, model).remarks), ()


def _drawn_at_random(model: nn.Module, again: nn.Module) -> bool:
    """Whether a factory makes other weights every time: then nobody has those of the client."""
    one, other = model.state_dict(), again.state_dict()
    return any(not torch.equal(tensor, other[name]) for name, tensor in one.items())


def _check_same(model: nn.Module, weights: Path, before: Path) -> None:
    """That --weights, given with --before, holds the same."""
    own, held = model.state_dict(), own_weights(files.load(weights).tensors, model)
    other = [n for n, t in held.items() if n in own and not torch.equal(t.to(own[n]), own[n])]
    if other:
        raise ModelError(
            f"{weights.name} and {before.name} hold different weights, first {other[0]!r}; the "
            "step began at --before, so leave out --weights"
        )
