"""How a command ends, and what it shows: exit codes, mistakes, progress, plain tables.

Mistakes and progress go to the error stream, where they do not mix with the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from softleak.core.errors import SoftleakError


class Exit(IntEnum):
    """What each exit code means."""

    DONE = 0
    MISTAKE = 2  # nothing was done: a wrong option, an unreadable file
    LEAK = 3  # something named by --fail-on leaks, or a claim is contradicted
    INCOMPLETE = 4  # some files of a folder, or cells of a table, could not be worked on
    INTERRUPTED = 130  # Ctrl-C, as shells count it
    # Something named by --fail-on could not be attacked, or an update contradicts what was stated,
    # and nothing named leaks.
    UNATTACKED = 5


def complain(error: SoftleakError | str) -> None:
    """Say what is wrong, on the error stream."""
    Console(stderr=True).print(f"[bold red]error[/] {escape(str(error))}", highlight=False)


def plain_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table whose long entries are folded; what is missing is a dash."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_written(entry)) for entry in row))
    return table


def _written(entry: object) -> str:
    return "–" if entry is None else f"{entry:.3g}" if isinstance(entry, float) else str(entry)


@contextmanager
def mistakes(kept: str = "Nothing was kept.") -> Iterator[None]:
    """End the command with a line and an exit code; ``kept`` is said after Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        Console(stderr=True).print(f"\nStopped. {escape(kept)}", highlight=False)
        raise typer.Exit(Exit.INTERRUPTED) from None
    except SoftleakError as error:
        complain(error)
        raise typer.Exit(Exit.MISTAKE) from None


@contextmanager
def counting_bar(first: str, *more: ProgressColumn) -> Iterator[tuple[Progress, TaskID]]:
    """Show a bar with a count and the time so far, until the block ends."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        *more,
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield bar, bar.add_task(first, total=None)
