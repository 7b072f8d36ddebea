"""Weights from files: safetensors, PyTorch state dicts and .npz. No pickle is executed."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from softleak.errors import ModelError

# BatchNorm counts batches for its cumulative average; inference does not read the count.
_OPTIONAL = "num_batches_tracked"


def load_weights(model: nn.Module, path: str | PathLike[str]) -> nn.Module:
    """Copy the weights in a .safetensors, .pt, .pth or .npz file into model and return it."""
    file = Path(path)
    if not file.is_file():
        raise ModelError(f"No weight file at {file}.")
    readers = {
        ".safetensors": _read_safetensors,
        ".pt": _read_torch,
        ".pth": _read_torch,
        ".npz": _read_npz,
    }
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise ModelError(f"Expected a weight file ending in {', '.join(readers)}, got {file.name}.")
    return copy_state(model, reader(file), file.name)


def copy_state(model: nn.Module, state: Mapping[str, Tensor], source: str) -> nn.Module:
    """Copy a state dict into model, or raise one ModelError that lists every mismatch."""
    own = model.state_dict()
    needed = [key for key in own if not key.endswith(_OPTIONAL)]
    problems = [f"missing: {key} {tuple(own[key].shape)}" for key in needed if key not in state]
    problems += [
        f"unexpected: {key} {tuple(value.shape)}" for key, value in state.items() if key not in own
    ]
    problems += [
        f"wrong shape: {key} is {tuple(state[key].shape)}, the model has {tuple(own[key].shape)}"
        for key in own
        if key in state and state[key].shape != own[key].shape
    ]
    if problems:
        listing = "\n  ".join(problems)
        raise ModelError(
            f"The weights in {source} do not fit this {type(model).__name__}. "
            f"Build the model these weights belong to (check classes and head):\n  {listing}"
        )
    with torch.no_grad():
        for key, value in state.items():
            own[key].copy_(value)
    return model


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(file)
    except (safetensors.SafetensorError, ValueError, OSError) as error:
        raise ModelError(f"{file.name} is not a readable safetensors file: {error}") from error


def _read_torch(file: Path) -> dict[str, Tensor]:
    try:
        state = torch.load(file, map_location=torch.get_default_device(), weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError) as error:
        raise ModelError(f"{file.name} is not a readable PyTorch state dict: {error}") from error
    if not isinstance(state, Mapping) or not all(isinstance(v, Tensor) for v in state.values()):
        raise ModelError(
            f"{file.name} must hold a state dict (names to tensors), got {type(state).__name__} "
            "with other values. Save model.state_dict() alone."
        )
    return dict(state)


def _read_npz(file: Path) -> dict[str, Tensor]:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return {key: torch.from_numpy(arrays[key]) for key in arrays.files}
    except Exception as error:  # zipfile, its decompressors and NumPy each raise their own
        raise ModelError(f"{file.name} is not a readable .npz of arrays: {error}") from error
