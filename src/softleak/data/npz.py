"""This module reads arrays from an .npz file that may be damaged or hostile, without pickles."""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from softleak.errors import DataError

# A small file may claim to unfold to any size; the claim is checked before it is read.
LARGEST_PACK = 4 * 2**30


def read_npz(path: Path, keys: Collection[str]) -> dict[str, npt.NDArray[Any]]:
    """Return those of the named arrays that the file has."""
    _check_size(path, keys)
    with _readable(path), np.load(path, allow_pickle=False) as arrays:
        return {key: arrays[key] for key in arrays.files if key in keys}


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # zipfile, its decompressors and NumPy each raise their own
        raise DataError(f"{path} is not a readable .npz file: {error}") from error


def _check_size(path: Path, keys: Collection[str]) -> None:
    with _readable(path), zipfile.ZipFile(path) as archive:
        members = [m for m in archive.infolist() if m.filename.removesuffix(".npy") in keys]
    size = sum(member.file_size for member in members)
    if size > LARGEST_PACK:
        raise DataError(f"{path} unfolds to {size} bytes; at most {LARGEST_PACK} are read at once.")
