"""This module goes from the weights of a round to the gradient behind a step, and back."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from softleak.errors import ShareError
from softleak.naming import own_names
from softleak.share import GradientShare

State = Mapping[str, Tensor]  # weights and buffers by name


def under_own_names(held: State, model: nn.Module) -> dict[str, Tensor]:
    """Return arrays under the model's names, which lists of arrays do not carry."""
    names = own_names(held, model)
    return {names[name]: tensor for name, tensor in held.items()}


def step_between(before: State, after: State, lr: float | None) -> GradientShare:
    """Return the gradient behind two states.

    Args:
        before: the state that the client received.
        after: the state that it sent back.
        lr: its learning rate. If it is None, the gradient is multiplied by an unknown factor.

    Raises:
        ShareError: if the states are not those of one model, or hold NaN or infinity.
    """
    if not after:
        raise ShareError("it sent no arrays, so there is nothing to audit")
    if before.keys() != after.keys():
        odd = sorted(before.keys() ^ after.keys())
        raise ShareError(
            f"it sent {len(after)} arrays under other names than the {len(before)} it received, "
            f"first {odd[0]!r}; is it of this model?"
        )
    _check_alike(before, after)
    share = GradientShare.from_update(before, after, lr=1.0 if lr is None else lr)
    share.check_finite()
    return share


def own_parameters(share: GradientShare, model: nn.Module) -> tuple[GradientShare, dict[str, str]]:
    """Return a share under the model's parameter names, and the model's name of each array.

    Running statistics are left out, because they are no gradients.

    Args:
        share: the gradient behind a step, under the names of the arrays that were sent.
        model: the architecture.
    """
    names = own_names(share, model)
    own = share.renamed(names)
    return own.without(*(own.keys() - dict(model.named_parameters()).keys())), names


def state_after(before: State, share: GradientShare, lr: float | None) -> dict[str, Tensor]:
    """Return the received state after one step of a share, under the same names.

    Running statistics and counters, which a share does not hold, stay as they were received.

    Args:
        before: the state that the client received.
        share: the gradient of the step.
        lr: the size of the step; 1 if it is not known.
    """
    size = 1.0 if lr is None else lr
    moved = {n: start.double() - size * share[n] for n, start in before.items() if n in share}
    return {name: moved.get(name, start).to(start.dtype) for name, start in before.items()}


def _check_alike(before: State, after: State) -> None:
    """Raise ``ShareError`` unless all arrays have the same shapes and kinds of numbers."""
    for name, start in before.items():
        came = after[name]
        if came.shape != start.shape:
            raise ShareError(
                f"the array {name!r} should have shape {tuple(start.shape)}, got "
                f"{tuple(came.shape)}; is it of this model?"
            )
        if came.is_floating_point() != start.is_floating_point():
            raise ShareError(f"the array {name!r} should be {start.dtype}, got {came.dtype}")
