"""This module checks where an audit will write, before anything is computed."""

from __future__ import annotations

import os
from itertools import combinations
from pathlib import Path

from softleak.cli.request import Request
from softleak.errors import FileError


def check_outputs(request: Request) -> None:
    """Raise ``FileError`` if a file of the answer could not be written, or would replace another.

    Args:
        request: the options as they were given; nothing is made or written.
    """
    if request.out.exists() and not request.out.is_dir():
        raise FileError(f"expected a folder for --out, found a file at {request.out}; name another")
    written = _written(request)
    for option, path in written:
        if path.is_dir():
            raise FileError(
                f"expected a file for {option}, found a folder at {path}; name a file, for example "
                "one in that folder"
            )
        _check_folder(option, path.parent)
        if any(_same(path, read) for read in _read(request)):
            raise FileError(f"{option} would replace {path}, which is read; name another file")
    _check_apart(written)


def _check_apart(written: list[tuple[str, Path]]) -> None:
    """Raise if two files are one, or one of them is a folder of the other."""
    for (one, path), (other, second) in combinations(written, 2):
        if _same(path, second):
            raise FileError(f"{one} and {other} would both write {path}; name two files")
        if _lies_in(second, path) or _lies_in(path, second):
            raise FileError(
                f"{one} would write {path} and {other} {second}: one of them cannot be a file and "
                "the folder of the other; name two files"
            )


def _written(request: Request) -> list[tuple[str, Path]]:
    """Return the files of the answer, each with the option that it belongs to."""
    names = ["index.html", "audit.json"]
    names += ["dossier.html", "dossier.json"] if request.dossier else []
    named = [("--junit", request.junit), ("--sarif", request.sarif)]
    given = [(option, path) for option, path in named if path is not None]
    return [*(("--out", request.out / name) for name in names), *given]


def _read(request: Request) -> list[Path]:
    given = (*request.files, request.share, request.tokenizer)
    return [path for path in given if path is not None]


def _check_folder(option: str, folder: Path) -> None:
    """Raise unless a folder can be written in, or made where the nearest one above it is."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise FileError(
            f"expected a folder at {there} for {option}, found a file; name another path"
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise FileError(f"cannot write in {there} for {option}; name a folder that is yours")


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def _lies_in(path: Path, folder: Path) -> bool:
    return folder.resolve() in path.resolve().parents
