"""This module checks, reads and writes each format. No pickle runs code here."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from softleak.errors import FileError
from softleak.tensor_files.content import META
from softleak.tensor_files.unwrap import Unwrapped, unwrap
from softleak.untrusted_files import check_npz, check_safetensors, check_zip, shown


@dataclass(frozen=True)
class Format:
    """This is one format; ``check`` looks at what a file claims before ``read`` takes memory."""

    check: Callable[[Path], None]
    read: Callable[[Path], tuple[Unwrapped, str]]
    write: Callable[[Path, dict[str, Tensor], str], None]


def format_of(path: Path) -> Format:
    """Return the format that a file's ending says; raises ``FileError`` for another ending."""
    if path.suffix not in _FORMATS:
        raise FileError(f"expected a file ending in {ENDINGS}; got {shown(path.name)!r}")
    return _FORMATS[path.suffix]


def _read_safetensors(path: Path) -> tuple[Unwrapped, str]:
    with safetensors.safe_open(path, framework="pt") as file:
        meta = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return Unwrapped(tensors), meta.get(META, "")


def _write_safetensors(path: Path, tensors: dict[str, Tensor], meta: str) -> None:
    safetensors.torch.save_file(tensors, path, metadata={META: meta})


def _read_pt(path: Path) -> tuple[Unwrapped, str]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise FileError(
            "it holds Python objects other than tensors and plain values, which are not loaded; "
            "save the state_dict alone"
        ) from error
    meta = content.get(META, "") if isinstance(content, Mapping) else ""
    return unwrap(content), meta if isinstance(meta, str) else ""


def _write_pt(path: Path, tensors: dict[str, Tensor], meta: str) -> None:
    torch.save({"gradients": tensors, META: meta}, path)


def _read_npz(path: Path) -> tuple[Unwrapped, str]:
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    meta = arrays.pop(META, np.array("")).item()
    native = {n: a.astype(a.dtype.newbyteorder("="), copy=False) for n, a in arrays.items()}
    return Unwrapped({name: torch.from_numpy(array) for name, array in native.items()}), str(meta)


def _write_npz(path: Path, tensors: dict[str, Tensor], meta: str) -> None:
    if any(tensor.dtype == torch.bfloat16 for tensor in tensors.values()):
        raise FileError("an .npz file cannot hold bfloat16; save as .safetensors or .pt")
    if tensors.keys() & {META, "file"}:
        raise FileError(f'an .npz file cannot hold tensors named "{META}" or "file"; save as .pt')
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays, **{META: np.array(meta)})


_TORCH = Format(check_zip, _read_pt, _write_pt)
_FORMATS: Mapping[str, Format] = {
    ".safetensors": Format(check_safetensors, _read_safetensors, _write_safetensors),
    ".pt": _TORCH,
    ".pth": _TORCH,
    ".bin": _TORCH,
    ".ckpt": _TORCH,
    ".npz": Format(check_npz, _read_npz, _write_npz),
}
ENDINGS = ", ".join(_FORMATS)
