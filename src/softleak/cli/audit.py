"""Carry out ``softleak audit``: files in; tables, a page and an exit code out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape

from softleak.audit.leaks import Leak
from softleak.audit.report import Audit
from softleak.cli import jobs
from softleak.cli.exits import Exit, counting_bar, mistakes
from softleak.cli.options import Request
from softleak.core.errors import FileError
from softleak.io.atomic import make_folder
from softleak.present.dossier import write_dossier
from softleak.present.json import as_data, write_json
from softleak.present.page import write_page
from softleak.present.pipelines import write_junit, write_sarif
from softleak.present.terminal import audit_table, closing_words, refusal_table, what_if_table


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


def carry_out(request: Request) -> None:
    """Audit what was asked for, write and show the answer, and end with an exit code."""
    with mistakes(f"Nothing was kept: {request.out} is written when the audit ends."):
        check_outputs(request)
        with _progress() as step:
            found = jobs.run(request, step)
        _write(request, found)
    _show(Console(stderr=request.as_json), found, request)
    raise typer.Exit(exit_code(found, request.leaks_to_fail_on))


def exit_code(found: Audit, fail_on: frozenset[Leak]) -> Exit:
    """Return the exit code of an audit; a leak outweighs what could not be attacked."""
    if not found.reports:
        return Exit.MISTAKE
    if any(report.leaks & fail_on for report in found.reports):
        return Exit.LEAK
    if any(report.unattacked & fail_on for report in found.reports):
        return Exit.UNATTACKED
    return Exit.INCOMPLETE if found.refused else Exit.DONE


def _write(request: Request, found: Audit) -> None:
    out = request.out
    make_folder(out)
    write_page(out / "index.html", found)
    write_json(out / "audit.json", found)
    if request.dossier:
        write_dossier(out, found)
    if request.junit is not None:
        write_junit(_ready(request.junit), found, request.leaks_to_fail_on)
    if request.sarif is not None:
        write_sarif(_ready(request.sarif), found)


def _ready(path: Path) -> Path:
    """Return the path of a file after its folder was made."""
    make_folder(path.parent)
    return path


def _show(console: Console, found: Audit, request: Request) -> None:
    if request.what_if and found.reports and found.what_if is None:
        console.print(
            "No attack recovered a label, feature or input, so there was nothing to try defences "
            "against."
        )
    if request.as_json:
        sys.stdout.write(json.dumps(as_data(found), allow_nan=False) + "\n")
        return
    console.print(audit_table(found))
    if found.refused:
        console.print(refusal_table(found))
    if found.what_if is not None:
        console.print(what_if_table(found.what_if))
    console.print(closing_words(found))
    console.print(f"The page: {escape(str(request.out / 'index.html'))}", highlight=False)
    if request.dossier:
        where = escape(str(request.out / "dossier.html"))
        console.print(f"The dossier: {where}", highlight=False)


@contextmanager
def _progress() -> Iterator[jobs.Step]:
    """Show a bar that counts updates, then settings of defences."""
    with counting_bar("reading") as (bar, task):

        def step(name: str, total: int) -> None:
            if name:
                bar.update(task, description=escape(name), total=total, advance=1)
            else:  # something new begins
                bar.update(task, total=total, completed=0)

        yield step
