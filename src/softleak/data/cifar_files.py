"""This module reads files out of a folder or a tar archive, never unpacked to disk."""

from __future__ import annotations

import tarfile
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from softleak.errors import DataError

# The largest official file, CIFAR-100's training set, has 155 MB.
LARGEST_CIFAR_FILE = 512 * 2**20


def first_bytes(file: Path, count: int) -> bytes:
    """Return the first `count` bytes of a file, or all it has."""
    try:
        with file.open("rb") as stream:
            return stream.read(count)
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error}") from error


def is_archive(file: Path) -> bool:
    """Return whether a file is a tar archive, gzipped or plain, by its first bytes."""
    head = first_bytes(file, 262)
    return head[:2] == b"\x1f\x8b" or head[257:] == b"ustar"


def read_file(file: Path) -> bytes:
    """Return the whole file, if it is no larger than a CIFAR file can be."""
    data = first_bytes(file, LARGEST_CIFAR_FILE + 1)
    _check_size(file.name, len(data))
    return data


def read_folder(folder: Path, wanted: Collection[str]) -> dict[str, bytes]:
    """Return those of the wanted files that the folder has."""
    return {name: read_file(folder / name) for name in wanted if (folder / name).is_file()}


def read_archive(file: Path, wanted: Collection[str]) -> dict[str, bytes]:
    """Return those of the wanted files that the archive has, in whichever folder inside it."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(file) as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                if name not in wanted or not member.isreg():
                    continue
                _check_size(name, member.size)
                stream = archive.extractfile(member)
                found[name] = stream.read() if stream else b""
    except DataError:
        raise
    except Exception as error:  # tarfile and its decompressors each raise their own
        raise DataError(f"{file} is not a readable tar archive: {error}") from error
    return found


def _check_size(name: str, size: int) -> None:
    if size > LARGEST_CIFAR_FILE:
        raise DataError(f"{name} has more bytes than any CIFAR file: over {LARGEST_CIFAR_FILE}.")
