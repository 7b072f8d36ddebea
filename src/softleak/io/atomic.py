"""Folders, and files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from softleak.core.errors import FileError


def make_folder(path: Path) -> None:
    """Make a folder and those it lies in; raises ``FileError`` if that is impossible."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make the folder {path} ({error.strerror})") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file that takes the place of ``path`` once the block has ended well."""
    if not path.parent.is_dir():
        raise FileError(f"expected a folder at {path.parent}, found none; make it first")
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:80]}.")
    except OSError as error:
        raise FileError(f"cannot write in {path.parent} ({error.strerror})") from error
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())  # mkstemp's files are for their owner alone
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, "utf-8")


def _umask() -> int:
    current = os.umask(0o077)
    os.umask(current)
    return current
