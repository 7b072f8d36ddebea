"""Files of tensors by name in three formats: what they hold, reading, writing, fingerprints."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from softleak.core.errors import FileError, in_a_line
from softleak.core.input_spec import InputPart, InputSpec, Layout
from softleak.io.atomic import replacing
from softleak.io.checkpoints import INDEX, Unwrapped, checkpoint_file, read_index, unwrap
from softleak.io.untrusted import (
    MOST_FILE_BYTES,
    check_content,
    check_file,
    check_npz,
    check_safetensors,
    check_tensors,
    check_zip,
    checked_shape,
    shown,
)

META = "softleak"  # where our own facts about a share live inside each format
MOST_PARTS = 16  # tensors of one input
MOST_ROWS = 1 << 28  # of a table of embeddings


@dataclass(frozen=True)
class Content:
    """What a file holds.

    The facts mean what the fields of ``GradientShare`` with the same names mean.
    """

    tensors: Mapping[str, Tensor]  # the tensors by name
    # The shape or the specification of one input, if the file records it.
    input_shape: Layout | None = None
    # An absolute error per entry, by name.
    rounding: Mapping[str, float] = field(default_factory=dict)
    scale: str | None = None  # "known" or "unknown", if the file says it
    precision: str | None = None  # the number format the client computed in, if the file says it
    # The local training behind the tensors, as ``made_by`` of a share writes it.
    client: str | None = None
    # Which part of the file was taken, where it holds more than one set of weights.
    remarks: tuple[str, ...] = ()

    @property
    def facts(self) -> str:
        """Return everything but the tensors, as it is written beside them."""
        return json.dumps(
            {
                "input_shape": _written(self.input_shape), "rounding": dict(self.rounding),
                "scale": self.scale, "precision": self.precision, "client": self.client,
            }
        )  # fmt: skip

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], meta: str, remarks: tuple[str, ...]) -> Content:
        """Return tensors with the facts beside them, checked as if a stranger had written them."""
        facts = json.loads(meta) if meta else {}
        told = {name: facts.get(name) for name in ("scale", "precision", "client")}
        if any(value is not None and not isinstance(value, str) for value in told.values()):
            raise FileError(f"its facts should be words, got {told}")
        rounding = {str(k): float(v) for k, v in facts.get("rounding", {}).items()}
        shape = _read(facts.get("input_shape"))
        return cls(tensors, shape, rounding, **told, remarks=remarks)


def _written(layout: Layout | None) -> object:
    """Return a layout as JSON can hold it: a list of sizes, or the parts of a specification."""
    if not isinstance(layout, InputSpec):
        return layout
    return {"parts": [[p.keyword, p.shape, p.integer, p.below] for p in layout.parts]}


def _read(held: object) -> Layout | None:
    """Return the layout that a file claims; raises ``FileError`` if it is not a possible one."""
    if not isinstance(held, dict):
        return checked_shape(held)
    parts = held.get("parts")
    if not isinstance(parts, list) or not 0 < len(parts) <= MOST_PARTS:
        raise FileError(f"its input should have from 1 to {MOST_PARTS} parts")
    return InputSpec(tuple(_read_part(part) for part in parts))


def _read_part(part: object) -> InputPart:
    if not isinstance(part, list) or len(part) != 4:
        raise FileError(f"a part of its input should have a name, sizes and a kind, got {part!r}")
    keyword, sizes, integer, below = part
    named = isinstance(keyword, str) and (not keyword or keyword.isidentifier())
    counted = below is None or (type(below) is int and 0 < below <= MOST_ROWS)
    if not named or not isinstance(integer, bool) or not counted:
        raise FileError(f"a part of its input is not one that a model takes: {part!r}")
    return InputPart(keyword, checked_shape(sizes) or (), integer, below)


@dataclass(frozen=True)
class Format:
    """One format; ``check`` looks at what a file claims before ``read`` takes memory."""

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


def load(path: Path) -> Content:
    """Return what a file, by its ending, or a Hugging Face folder holds; it need not be trusted.

    Raises ``FileError`` with the reason if it is damaged, too large, or holds anything but tensors.
    """
    file = checkpoint_file(path) if os.path.isdir(path) else path
    return _sharded(file) if file.name.endswith(INDEX) else _single(file)


def parts(path: Path) -> tuple[Path, ...]:
    """Return the files that are read for a path: itself, or those of a folder."""
    file = checkpoint_file(path) if os.path.isdir(path) else path
    return (file, *sorted(_index(file))) if file.name.endswith(INDEX) else (file,)


def save(path: Path, content: Content) -> None:
    """Write tensors and facts in the format of the path's ending, whole or not at all."""
    writer = format_of(path).write
    # Copies: tensors that share memory, as tied weights do, are refused by some formats.
    ready = {n: tensor.detach().cpu().clone().contiguous() for n, tensor in content.tensors.items()}
    with replacing(path) as temporary:
        writer(temporary, ready, content.facts)


def _single(path: Path) -> Content:
    form = format_of(path)
    check_file(path)
    try:
        check_content(path)
        form.check(path)
        held, meta = form.read(path)
        check_tensors(held.tensors)
        return Content.of(held.tensors, meta, held.remarks)
    except Exception as error:  # the formats and their decompressors each raise their own
        raise _refusal(path, f"a readable {path.suffix} file of tensors by name", error) from error


def _sharded(index: Path) -> Content:
    """Return the tensors an index lists, each from the file it names."""
    tensors: dict[str, Tensor] = {}
    shards = _index(index)
    for shard in shards:
        check_file(shard)
    size = sum(shard.stat().st_size for shard in shards)
    if size > MOST_FILE_BYTES:
        raise FileError(
            f"the shards of {shown(index.name)} have {size} bytes, more than the "
            f"{MOST_FILE_BYTES} that are read"
        )
    for shard, names in shards.items():
        held = _single(shard).tensors
        lacking = sorted(names - held.keys())
        if lacking:
            raise FileError(
                f"{shown(index.name)} says that {shown(shard.name)} holds "
                f"{shown(lacking[0])!r}, which it does not"
            )
        tensors |= {name: held[name] for name in sorted(names)}
    return Content(tensors)


def _index(index: Path) -> Mapping[Path, frozenset[str]]:
    check_file(index)
    try:
        return read_index(index)
    except Exception as error:  # JSON of a stranger: too deep, not UTF-8, cut off
        raise _refusal(index, "a readable index of shards", error) from error


def _refusal(path: Path, what: str, error: Exception) -> FileError:
    reason = shown(in_a_line(error))
    hint = (
        "" if isinstance(error, FileError)
        else "; it may be truncated, or hold objects other than tensors, which are refused"
    )  # fmt: skip
    return FileError(f"{shown(path.name)} is not {what} ({reason}){hint}")


def fingerprint(path: Path) -> str:
    """Return the SHA-256 of a file, or of the files of a sharded one, one after the other."""
    digest = hashlib.sha256()
    for part in parts(path):
        with part.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
