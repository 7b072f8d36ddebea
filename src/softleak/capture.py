"""The client's side: the gradient one sample would send. Reads the model, changes nothing of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from softleak.errors import DataError, LabelError, ModelError, NonFinite, SoftleakError
from softleak.share import GradientShare

ArrayLike: TypeAlias = Any  # a tensor, an array, a list of numbers
SUM_TOLERANCE = 2.5e-7  # a class: what float32 arithmetic leaves of a sum of one


def capture(model: nn.Module, x: ArrayLike, y: ArrayLike) -> GradientShare:
    """The gradient of the cross-entropy of one sample, by parameter name.

    ``x`` is one input, with or without a batch dimension of one; ``y`` a class index or a soft
    label of shape (C,); both tensors, arrays or lists. Parameters, ``.grad``, buffers and the
    train/eval mode stay as they were. A soft label less precise than the model is first divided by
    its sum, so that rounding is no part of it: error bounds refer to the label so normalised.
    """
    trainable = {n: p for n, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise ModelError("the model has no trainable parameter: a client would send nothing")
    with torch.enable_grad():
        logits, batched = forward_one(model, _tensor(x, "the input", DataError))
        label = _label(y, logits)
        loss = F.cross_entropy(logits, label.unsqueeze(0))
        found = gradients_of(loss, list(trainable.values()))
    sent = {name: g for name, g in zip(trainable, found, strict=True) if g is not None}
    return GradientShare(sent, tuple(batched.shape[1:]), scale="known")


def gradients_of(loss: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """The gradients of a loss; None where it does not depend on a parameter."""
    try:
        return torch.autograd.grad(loss, parameters, allow_unused=True)
    except RuntimeError as error:  # the user's own code may do anything with the graph
        reason = str(error).strip().splitlines()[0]
        raise ModelError(
            f"the model's gradient cannot be computed: {reason}; a model that keeps tensors of one "
            "run for the next has to be made anew, or put in train mode and back, before each run"
        ) from error


def forward_one(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of shape (1, C) of one input, and the input as a batch of one."""
    errors: list[str] = []
    like = next(model.parameters())
    x = x.detach().to(like.device, like.dtype)
    # A batch of one may or may not have been added by the caller; only the model can tell.
    for batched in [x, x.unsqueeze(0)] if x.shape[:1] == (1,) else [x.unsqueeze(0)]:
        try:
            logits = functional_call(model, _copied_buffers(model), (batched,))
        except Exception as error:  # the user's own code may raise anything
            errors.append((str(error).strip() or type(error).__name__).splitlines()[0])
            continue
        if isinstance(logits, Tensor) and logits.ndim == 2 and len(logits) == 1:
            return logits, batched
        came = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        errors.append(f"the output is {came}, expected logits of shape (1, classes)")
    raise ModelError(
        f"the model does not take one input of shape {tuple(x.shape)}: {errors[0]}; "
        "give one sample, without others in its batch"
    )


def _copied_buffers(model: nn.Module) -> dict[str, Tensor]:
    # BatchNorm in train mode writes its running statistics in place: into these copies.
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def _label(y: object, logits: Tensor) -> Tensor:
    """A soft label of shape (C,), checked."""
    classes = logits.shape[1]
    given = _tensor(y, "the label", LabelError).to(logits.device)
    if given.ndim == 0:
        if given.is_floating_point() or not 0 <= int(given) < classes:
            raise LabelError(f"expected a class index from 0 to {classes - 1}, got {given.item()}")
        return F.one_hot(given.long(), classes).to(logits.dtype)
    label = given[0] if given.ndim == 2 and len(given) == 1 else given
    if label.shape != (classes,):
        raise LabelError(
            f"expected one soft label of {classes} entries, got shape {tuple(given.shape)}"
        )
    if not label.isfinite().all():
        raise NonFinite("the soft label holds NaN or infinity")
    total = float(label.double().sum())
    if label.min() < 0 or abs(total - 1) > SUM_TOLERANCE * classes:
        raise LabelError(
            "expected a soft label with no negative entry and sum one, got minimum "
            f"{float(label.min()):.3g} and sum {total:.7g}; divide it by its sum"
        )
    precise = torch.finfo(logits.dtype).eps
    if label.is_floating_point() and torch.finfo(label.dtype).eps > precise:
        label = label.double() / label.double().sum()
    return label.to(logits.dtype)


def _tensor(given: object, what: str, refusal: type[SoftleakError]) -> Tensor:
    """Whatever torch can make a tensor of: arrays, lists, numbers."""
    try:
        return torch.as_tensor(given).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(given).__name__
        raise refusal(f"expected {what} as numbers, got {kind} ({error})") from error
