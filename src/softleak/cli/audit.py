"""This module carries out ``softleak audit``: files in; tables, a page and an exit code out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape

from softleak.atomic import make_folder
from softleak.auditing import Audit
from softleak.cli import jobs
from softleak.cli.exits import Exit, mistakes
from softleak.cli.output_paths import check_outputs
from softleak.cli.progress import counting_bar
from softleak.cli.request import Request
from softleak.cli.tables import audit_table, closing_words, refusal_table, what_if_table
from softleak.report import (
    as_data,
    write_dossier,
    write_json,
    write_junit,
    write_page,
    write_sarif,
)
from softleak.vocabulary import Leak


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
