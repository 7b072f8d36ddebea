"""Weights in a file, copied into a model; Hugging Face has other names on disk."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from softleak import io as tensor_files
from softleak.core.errors import ModelError
from softleak.io.names import match


def pretrained_weights(held: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor] | None:
    """Return weights under the names the library has in memory, converted by the library itself.

    The answer is None if the model holds no network of the library, or if the weights are not all
    of its weights. Nothing is downloaded: the library is given the tensors and the configuration it
    has.
    """
    library: Any = sys.modules.get("transformers")  # a model of it has imported it
    if library is None:
        return None
    for name, module in model.named_modules():
        if isinstance(module, library.PreTrainedModel):
            return _converted(module, held, f"{name}." if name else "")
    return None


def _converted(
    module: Any,  # noqa: ANN401 - the library's own class
    held: Mapping[str, Tensor],
    prefix: str,
) -> dict[str, Tensor] | None:
    try:
        with _silence(sys.modules["transformers"].utils.logging):
            loaded, info = type(module).from_pretrained(
                None, config=module.config, state_dict=dict(held), output_loading_info=True
            )
    except Exception:  # the library raises what it likes for weights of another model
        return None
    if any(info.get(kind) for kind in ("missing_keys", "mismatched_keys", "error_msgs")):
        return None
    return {prefix + name: tensor for name, tensor in loaded.state_dict().items()}


@contextmanager
def _silence(log: Any) -> Iterator[None]:  # noqa: ANN401 - the library's own module
    """Keep the library from printing what does not fit; whoever loads says it in a few lines."""
    before, shown = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(before)
        if shown:
            log.enable_progress_bar()


# BatchNorm counts batches for its cumulative average; inference does not read the count.
_NOT_NEEDED = "num_batches_tracked"
MOST_MISMATCHES = 5  # tensors that do not fit which a message names


def load_weights(model: nn.Module, path: str | PathLike[str]) -> nn.Module:
    """Copy the weights in a file or a Hugging Face folder into a model, and return the model.

    Raises ``ModelError`` with what does not fit.
    """
    file = Path(path)
    return copy_weights(model, tensor_files.load(file).tensors, file.name)


def copy_weights(model: nn.Module, held: Mapping[str, Tensor], source: str) -> nn.Module:
    """Copy weights into model whatever wrapper's prefix their names carry, and return it."""
    return copy_state(model, own_weights(held, model), source)


def own_weights(held: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Return weights under the model's own names; on disk Hugging Face has others."""
    found = {own: held[name] for name, own in match(held, model).names.items()}
    if not model.state_dict().keys() - found.keys():
        return found
    return pretrained_weights(held, model) or found


def copy_state(model: nn.Module, state: Mapping[str, Tensor], source: str) -> nn.Module:
    """Copy a state dict into model, or raise one ModelError with the mismatches."""
    own = model.state_dict()
    there = {_place(own[key]) for key in own if key in state}
    needed = [key for key in own if not key.endswith(_NOT_NEEDED) and _place(own[key]) not in there]
    problems = (
        [f"missing: {key} {tuple(own[key].shape)}" for key in needed],
        [f"unexpected: {key} {tuple(v.shape)}" for key, v in state.items() if key not in own],
        [
            f"wrong shape: {key} is {tuple(state[key].shape)}, the model has "
            f"{tuple(own[key].shape)}"
            for key in own
            if key in state and state[key].shape != own[key].shape
        ],
    )
    if any(problems):
        raise ModelError(
            f"The weights in {source} do not fit this {type(model).__name__}. "
            f"Build the model these weights belong to (check classes and head):{_listing(problems)}"
        )
    with torch.no_grad():
        for key, value in state.items():
            own[key].copy_(value)
    return model


def _listing(problems: Sequence[Sequence[str]]) -> str:
    """Return the first mismatches, of each kind in turn, and how many more there are."""
    in_turn = [one for row in zip_longest(*problems) for one in row if one is not None]
    more = len(in_turn) - MOST_MISMATCHES
    shown = [*in_turn[:MOST_MISMATCHES], *([f"and {more} more"] if more > 0 else [])]
    return "".join(f"\n  {line}" for line in shown)


def _place(tensor: Tensor) -> tuple[int, tuple[int, ...]]:
    """Return where a tensor is in memory. Tied weights are one tensor, held once by some files."""
    return tensor.data_ptr(), tuple(tensor.shape)
