"""What a file claims, checked before memory is taken for it: update files come from strangers."""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from softleak.core.errors import FileError

MOST_FILE_BYTES = 8 << 30  # the size of a file, and of what it unpacks to
MOST_HEADER_BYTES = 64 << 20  # the size of its list of contents
MOST_TENSORS = 100_000
LONGEST_NAME = 1000  # of a tensor
MOST_DIMENSIONS = 8  # of a tensor, and of a recorded input shape
MOST_INPUT_ENTRIES = 1 << 27  # of an input whose shape a file records
ARCHIVE = b"PK"  # how a zip archive begins; its list of contents is at its end


def check_file(path: Path) -> None:
    """Raise ``FileError`` unless there is a file, of a size that can be read."""
    if not os.path.isfile(path):  # unlike Path.is_file it takes any name
        raise FileError(f"expected a file at {shown(path)}, found none; check the path")
    _within(path.stat().st_size, MOST_FILE_BYTES, f"{shown(path.name)} has")


def check_content(path: Path) -> None:
    """Raise ``FileError`` if a file holds nothing at all."""
    if not path.stat().st_size:
        raise FileError("it is empty; copy it again from where it came from")


def check_safetensors(path: Path) -> None:
    """Raise unless the header has the size it says, names nothing twice, and all tensors follow."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        _within(length, min(MOST_HEADER_BYTES, size), "its header claims")
        try:
            header = json.loads(file.read(length), object_pairs_hook=_without_repetition)
        except ValueError as error:
            raise FileError(
                "its header is not JSON, so it is damaged or not a safetensors file; copy it again"
            ) from error
    if not isinstance(header, dict):
        raise FileError("its header is not a list of tensors by name")
    there, needed = size - 8 - length, max(map(_end, header.values()), default=0)
    if needed > there:
        raise FileError(
            f"it is incomplete: its tensors take {needed} bytes and it holds {there}; copy it again"
        )


def _end(entry: object) -> int:
    """Return where a tensor ends by a header of safetensors, if that says it."""
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    last = offsets[-1] if isinstance(offsets, list) and offsets else 0
    return last if type(last) is int else 0


def check_zip(path: Path) -> None:
    """Raise unless a .pt file is an archive of uncompressed members no larger than itself."""
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            if file.read(len(ARCHIVE)) == ARCHIVE:
                raise FileError(
                    "it begins as an archive whose end is missing, so it is incomplete; copy it "
                    "again"
                )
        raise FileError(
            "it is not an archive, which torch.save has written since PyTorch 1.6; load it with "
            "the version it came from and save it again"
        )
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    _once(member.filename for member in members)
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise FileError("its members are compressed, which torch.save never does")
    _within(sum(m.file_size for m in members), path.stat().st_size, "its members claim")
    pickles = (m.file_size for m in members if m.filename.endswith(".pkl"))
    _within(max(pickles, default=0), MOST_HEADER_BYTES, "its list of contents claims")


def check_npz(path: Path) -> None:
    """Raise unless all arrays together unpack to a readable size; NumPy reads no more of any."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        _once(member.filename.removesuffix(".npy") for member in members)
        _within(sum(m.file_size for m in members), MOST_FILE_BYTES, "its arrays claim")


def check_tensors(tensors: dict[str, Tensor]) -> None:
    """Raise unless these are plain CPU tensors with memory for all entries and readable names."""
    if len(tensors) > MOST_TENSORS:
        raise FileError(f"it holds {len(tensors)} tensors; at most {MOST_TENSORS} are read")
    for name, tensor in tensors.items():
        if not name.isprintable() or len(name) > LONGEST_NAME:
            raise FileError(f"it holds a tensor with the unreadable name {name[:60]!r}")
        if tensor.is_quantized:
            raise FileError(f"{name!r} is quantised; send it as floating point (.dequantize())")
        if tensor.layout is not torch.strided or tensor.is_nested:
            raise FileError(f"{name!r} is sparse or nested; make it dense with .to_dense()")
        # A stride of zero lets one number pose as any amount of them.
        if tensor.is_meta or tensor.nbytes > tensor.untyped_storage().nbytes():
            raise FileError(f"{name!r} claims {tensor.numel()} entries and does not have them")
        if tensor.ndim > MOST_DIMENSIONS:
            raise FileError(f"{name!r} has {tensor.ndim} dimensions")


def checked_shape(shape: object) -> tuple[int, ...] | None:
    """Return the input shape that a file claims; raises if it is not a possible one."""
    if not shape:
        return None
    if not isinstance(shape, list) or len(shape) > MOST_DIMENSIONS:
        raise FileError(f"its input shape is not a list of at most {MOST_DIMENSIONS} sizes")
    if not all(type(n) is int and 0 < n <= MOST_INPUT_ENTRIES for n in shape):
        raise FileError(f"it claims an input of shape {shape}")
    _within(math.prod(shape), MOST_INPUT_ENTRIES, "its input shape claims")
    return tuple(shape)


def shown(name: str | Path) -> str:
    """Return a name as it may be printed: without what a terminal or a page would obey."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(name))[:300]


def _within(size: int, most: int, what: str) -> None:
    if size > most:
        raise FileError(f"{what} {size} bytes or entries; at most {most} are possible")


def _once(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise FileError(f"it holds {shown(name)!r} twice")
        seen.add(name)


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _once(name for name, _ in pairs)
    return dict(pairs)
