"""This module goes from NVIDIA FLARE's exchange objects to weights by name, and back."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.shareable import Shareable
from torch import Tensor, nn

from softleak.errors import ModelError, ShareError
from softleak.integrations.guarding.own_step import OwnStep
from softleak.integrations.guarding.states import State
from softleak.share import GradientShare

AUDITED_KINDS = [DataKind.WEIGHT_DIFF, DataKind.WEIGHTS]


def built(model: nn.Module | str, arguments: Mapping[str, Any]) -> nn.Module:
    """Return a model, which a configuration names by ``package.module:factory``.

    Args:
        model: the model, or the name of what makes it.
        arguments: the arguments of the factory.
    """
    if isinstance(model, nn.Module):
        return model
    module, colon, factory = str(model).partition(":")
    if not colon:
        raise ModelError(f"expected the model as package.module:factory, got {model!r}")
    made = getattr(importlib.import_module(module), factory)(**arguments)
    if not isinstance(made, nn.Module):
        raise ModelError(f"{model!r} should make an nn.Module, made a {type(made).__name__}")
    return made


def leaves(dxo: DXO) -> Iterator[DXO]:
    """Yield the objects within a collection, however deep; the object itself if it is none."""
    if dxo.data_kind != DataKind.COLLECTION:
        yield dxo
        return
    held = dxo.data.values() if isinstance(dxo.data, dict) else dxo.data
    for one in held:
        if not isinstance(one, DXO):
            raise ShareError(f"expected a collection of DXO, got a {type(one).__name__} in it")
        yield from leaves(one)


def received_state(task: Shareable) -> dict[str, Tensor]:
    """Return copies of the weights that a task brings, or raise ``ShareError``."""
    dxo = from_shareable(task)
    if dxo.data_kind != DataKind.WEIGHTS:
        raise ShareError(f"expected a task with weights, got one with {dxo.data_kind}")
    return tensors(dxo)


def tensors(dxo: DXO) -> dict[str, Tensor]:
    """Return copies of the arrays of an object as tensors, or raise ``ShareError``."""
    found = {}
    for name, array in dxo.data.items():
        try:
            found[name] = torch.as_tensor(array).detach().cpu().clone()
        except (ValueError, TypeError, RuntimeError) as error:
            raise ShareError(f"the array {name!r} cannot be read ({error})") from error
    return found


def own_step(before: State, dxo: DXO, lr: float | None, model: nn.Module) -> OwnStep:
    """Return the step that an object is about to tell, or raise ``ShareError``.

    Args:
        before: the state that the client received.
        dxo: weights, or differences of weights; variables that were excluded may be missing.
        lr: the client's learning rate; None if it is unknown.
        model: the architecture.
    """
    sent = tensors(dxo)
    strange = sorted(sent.keys() - before.keys())
    if strange:
        raise ShareError(f"it sends {strange[0]!r}, which it did not receive; is it of this model?")
    if dxo.data_kind == DataKind.WEIGHT_DIFF:
        sent = {name: _moved(before[name], tensor, name) for name, tensor in sent.items()}
    return OwnStep.of(before, sent, lr, None, model)


def _moved(start: Tensor, difference: Tensor, name: str) -> Tensor:
    """Return a weight after its step, in double precision, which does not round the difference."""
    if start.shape != difference.shape:
        raise ShareError(
            f"the array {name!r} should have shape {tuple(start.shape)}, got "
            f"{tuple(difference.shape)}; is it of this model?"
        )
    if not start.is_floating_point():
        return start + difference.to(start.dtype)
    return start.double() + difference.double()


def defended_dxo(dxo: DXO, step: OwnStep, share: GradientShare) -> DXO:
    """Return an object of the same kind that tells another share.

    Args:
        dxo: the object that would be sent otherwise, whose numbers' types and properties are kept.
        step: the step that it tells.
        share: the gradient to tell instead.
    """
    state = step.after(share)
    if dxo.data_kind == DataKind.WEIGHT_DIFF:
        size = 1.0 if step.lr is None else step.lr
        told = share.renamed({own: name for name, own in step.names.items()})
        state = {n: -size * told[n] if n in told else torch.zeros_like(t) for n, t in state.items()}
    data = {name: _like(state[name], array) for name, array in dxo.data.items()}
    return DXO(dxo.data_kind, data, dict(dxo.meta))


def _like(tensor: Tensor, array: object) -> object:
    """Return a tensor as a tensor or an array of the same type as another."""
    if isinstance(array, Tensor):
        return tensor.to(array)
    return tensor.numpy().astype(getattr(array, "dtype", None))
