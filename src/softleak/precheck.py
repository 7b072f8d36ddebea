"""What a file claims, checked before memory is taken for it. Update files come from strangers."""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softleak.errors import FileError

LARGEST = 8 << 30  # bytes of a file, and of what it unfolds to
HEADER = 64 << 20  # bytes of the list of contents
TENSORS, NAME, DIMENSIONS = 100_000, 1000, 8
LARGEST_INPUT = 1 << 27  # entries of an input


def check_file(path: Path) -> None:
    """There is a file, and of a size that can be read."""
    if not os.path.isfile(path):  # unlike Path.is_file it takes any name
        raise FileError(f"expected a file at {shown(path)}, found none; check the path")
    _within(path.stat().st_size, LARGEST, f"{shown(path.name)} has")


def check_safetensors(path: Path) -> None:
    """The header is as long as it says, and names nothing twice; offsets the library checks."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        _within(length, min(HEADER, path.stat().st_size), "its header claims")
        json.loads(file.read(length), object_pairs_hook=_without_repetition)


def check_zip(path: Path) -> None:
    """A .pt file: an archive of uncompressed members that are together no larger than it is."""
    if not zipfile.is_zipfile(path):
        raise FileError(
            "it is no archive as torch.save has written since PyTorch 1.6; load it with the "
            "version it came from and save it again"
        )
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    _once(member.filename for member in members)
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise FileError("its members are compressed, which torch.save never does")
    _within(sum(m.file_size for m in members), path.stat().st_size, "its members claim")
    pickles = (m.file_size for m in members if m.filename.endswith(".pkl"))
    _within(max(pickles, default=0), HEADER, "its list of contents claims")


def check_npz(path: Path) -> None:
    """Every array unfolds to what its header says, and all together to a size that can be read."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        _once(member.filename.removesuffix(".npy") for member in members)
        _within(sum(m.file_size for m in members), LARGEST, "its arrays claim")
        for member in members:
            with archive.open(member) as file:
                _check_npy(file, member.file_size)


def _check_npy(file: Any, size: int) -> None:  # noqa: ANN401 - numpy says no more of it
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0
    shape, _, dtype = (read if version == (1, 0) else np.lib.format.read_array_header_2_0)(file)
    if dtype.hasobject:
        raise FileError("it holds objects")
    if any(n < 0 for n in shape):
        raise FileError(f"an array claims the shape {shape}")
    _within(math.prod(shape) * dtype.itemsize, size, "an array claims")


def check_tensors(tensors: dict[str, Tensor]) -> None:
    """Plain tensors on the CPU, each with memory for all its entries, under readable names."""
    if len(tensors) > TENSORS:
        raise FileError(f"it holds {len(tensors)} tensors; at most {TENSORS} are read")
    for name, tensor in tensors.items():
        if not name.isprintable() or len(name) > NAME:
            raise FileError(f"it holds a tensor with the unreadable name {name[:60]!r}")
        if tensor.is_quantized:
            raise FileError(f"{name!r} is quantised; send it as floating point (.dequantize())")
        if tensor.layout is not torch.strided or tensor.is_nested:
            raise FileError(f"{name!r} is sparse or nested; make it dense with .to_dense()")
        # A stride of zero lets one number pose as any amount of them.
        if tensor.is_meta or tensor.nbytes > tensor.untyped_storage().nbytes():
            raise FileError(f"{name!r} claims {tensor.numel()} entries and does not have them")
        if tensor.ndim > DIMENSIONS:
            raise FileError(f"{name!r} has {tensor.ndim} dimensions")


def checked_shape(shape: object) -> tuple[int, ...] | None:
    """The shape of an input as a file may claim it."""
    if not shape:
        return None
    if not isinstance(shape, list) or len(shape) > DIMENSIONS:
        raise FileError(f"its input shape is not a list of at most {DIMENSIONS} sizes")
    if not all(type(n) is int and 0 < n <= LARGEST_INPUT for n in shape):
        raise FileError(f"it claims an input of shape {shape}")
    _within(math.prod(shape), LARGEST_INPUT, "its input shape claims")
    return tuple(shape)


def shown(name: str | Path) -> str:
    """A name as it may be printed: without what a terminal or a page would obey."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(name))[:300]


def _within(size: int, most: int, what: str) -> None:
    if size > most:
        raise FileError(f"{what} {size} bytes or entries, where at most {most} can be")


def _once(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise FileError(f"it holds {shown(name)!r} twice")
        seen.add(name)


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _once(name for name, _ in pairs)
    return dict(pairs)
