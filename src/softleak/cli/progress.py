"""This module shows progress on the error stream, where it does not mix with the answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)


@contextmanager
def counting_bar(first: str, *more: ProgressColumn) -> Iterator[tuple[Progress, TaskID]]:
    """Show a bar with a count and the time so far, until the block ends.

    Args:
        first: the description until another one is set.
        more: columns to show at the end.
    """
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        *more,
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield bar, bar.add_task(first, total=None)
