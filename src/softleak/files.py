"""Tensors by name, to and from disk. Nothing in a file is ever executed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from softleak.atomic import replacing
from softleak.errors import FileError
from softleak.precheck import (
    check_file,
    check_npz,
    check_safetensors,
    check_tensors,
    check_zip,
    checked_shape,
    shown,
)

META = "softleak"  # where our own facts about a share live inside each format


@dataclass(frozen=True)
class Content:
    """What a file holds: tensors by name, and the facts softleak wrote beside them.

    The facts mean what the fields of ``GradientShare`` with the same names mean.
    """

    tensors: Mapping[str, Tensor]
    input_shape: tuple[int, ...] | None = None
    rounding: Mapping[str, float] = field(default_factory=dict)
    scale: str | None = None
    precision: str | None = None


def load(path: Path) -> Content:
    """Read a file by its ending; raises ``FileError`` with the reason."""
    form = _format(path)
    check_file(path)
    try:
        form.check(path)
        tensors, meta = form.read(path)
        check_tensors(tensors)
        return Content(tensors, **_facts(meta))
    except Exception as error:  # three formats and their decompressors each raise their own
        lines = str(error).strip().splitlines()
        reason = shown(lines[0]) if lines else type(error).__name__
        hint = (
            "" if isinstance(error, FileError)
            else "; it may be truncated, or hold objects other than tensors, which are refused"
        )  # fmt: skip
        raise FileError(
            f"{shown(path.name)} is not a readable {path.suffix} file of tensors by name "
            f"({reason}){hint}"
        ) from error


def _facts(meta: str) -> dict[str, Any]:
    """The facts beside the tensors, checked as if a stranger had written them."""
    facts = json.loads(meta) if meta else {}
    told = {name: facts.get(name) for name in ("scale", "precision")}
    if any(value is not None and not isinstance(value, str) for value in told.values()):
        raise FileError(f"its facts should be words, got {told}")
    rounding = {str(k): float(v) for k, v in facts.get("rounding", {}).items()}
    return {"input_shape": checked_shape(facts.get("input_shape")), "rounding": rounding, **told}


def save(path: Path, content: Content) -> None:
    """Write by the path's ending, to a temporary file first: whole or not at all."""
    writer = _format(path).write
    # Copies: tensors that share memory, as tied weights do, are refused by some formats.
    ready = {n: tensor.detach().cpu().clone().contiguous() for n, tensor in content.tensors.items()}
    facts = {
        "input_shape": content.input_shape, "rounding": dict(content.rounding),
        "scale": content.scale, "precision": content.precision,
    }  # fmt: skip
    with replacing(path) as temporary:
        writer(temporary, ready, json.dumps(facts))


@dataclass(frozen=True)
class _Format:
    check: Callable[[Path], None]
    read: Callable[[Path], tuple[dict[str, Tensor], str]]
    write: Callable[[Path, dict[str, Tensor], str], None]


def _format(path: Path) -> _Format:
    if path.suffix not in _FORMATS:
        raise FileError(f"expected a file ending in {ENDINGS}; got {shown(path.name)!r}")
    return _FORMATS[path.suffix]


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], str]:
    with safetensors.safe_open(path, framework="pt") as file:
        meta = file.metadata() or {}
        return {name: file.get_tensor(name) for name in file.keys()}, meta.get(META, "")  # noqa: SIM118


def _write_safetensors(path: Path, tensors: dict[str, Tensor], meta: str) -> None:
    safetensors.torch.save_file(tensors, path, metadata={META: meta})


def _read_pt(path: Path) -> tuple[dict[str, Tensor], str]:
    content = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(content, Mapping):
        raise FileError(f"it should hold a dict of tensors, holds {type(content).__name__}")
    meta = content.get(META, "")
    for wrapper in ("state_dict", "model_state_dict", "gradients"):
        if isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    tensors = {str(n): t for n, t in content.items() if isinstance(t, Tensor)}
    if not tensors:
        raise FileError("it holds no tensors; expected a dict of tensors by name")
    return tensors, meta if isinstance(meta, str) else ""


def _write_pt(path: Path, tensors: dict[str, Tensor], meta: str) -> None:
    torch.save({"gradients": tensors, META: meta}, path)


def _read_npz(path: Path) -> tuple[dict[str, Tensor], str]:
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    meta = arrays.pop(META, np.array("")).item()
    native = {n: a.astype(a.dtype.newbyteorder("="), copy=False) for n, a in arrays.items()}
    return {name: torch.from_numpy(array) for name, array in native.items()}, str(meta)


def _write_npz(path: Path, tensors: dict[str, Tensor], meta: str) -> None:
    if any(tensor.dtype == torch.bfloat16 for tensor in tensors.values()):
        raise FileError("an .npz file cannot hold bfloat16; save as .safetensors or .pt")
    if tensors.keys() & {META, "file"}:
        raise FileError(f'an .npz file cannot hold tensors named "{META}" or "file"; save as .pt')
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays, **{META: np.array(meta)})


_FORMATS: Mapping[str, _Format] = {
    ".safetensors": _Format(check_safetensors, _read_safetensors, _write_safetensors),
    ".pt": _Format(check_zip, _read_pt, _write_pt),
    ".pth": _Format(check_zip, _read_pt, _write_pt),
    ".npz": _Format(check_npz, _read_npz, _write_npz),
}
ENDINGS = ", ".join(_FORMATS)
