"""This module carries out ``softleak reproduce``: the paper's tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import TimeRemainingColumn

from softleak.cli.exits import Exit, complain, mistakes
from softleak.cli.paper_options import EVERYTHING, EngineName, ReproduceOptions
from softleak.cli.progress import counting_bar
from softleak.cli.result_tables import omission_table, results_table
from softleak.errors import SoftleakError
from softleak.experiments import EXPERIMENTS, Reproduction, Shelf, Size, reproduce, tabulated
from softleak.experiments.frameworks import frameworks_left_out, runnable
from softleak.experiments.leaderboard import LEADERBOARD
from softleak.report.figures import FIGURES, Drawing
from softleak.report.figures.canvas import pyplot
from softleak.report.results_page import Results, around, splice, write_results
from softleak.sweep import Cluster, Engine, Local, Piece, Processes, Records

_KEPT = "All samples that were computed are in {}/records.sqlite; the same command continues."


def carry_out(options: ReproduceOptions) -> None:
    """Run the tables and draw the figures asked for, show them, and end with an exit code."""
    console, out, what = Console(), options.out, options.what.value
    chosen = [e for name, e in EXPERIMENTS.items() if what in (name, EVERYTHING)]
    figures = [name for name in FIGURES if what in (name, EVERYTHING)]
    shelf = Shelf(options.data, options.weights)
    with mistakes():
        _check(options.page, figures)
        to_run = [runnable(experiment, options.only) for experiment in chosen]
    with mistakes(_KEPT.format(out)), Records(out) as records, _progress() as begin:
        size = Size(options.samples, options.repeats, options.full)
        outcome = reproduce(
            to_run, size, shelf, records, _engine(options), options.only, options.compiled, begin
        )
        undrawn = _draw_all(figures, shelf, records, options)
        results = Results.of(records)
        write_results(out, results)
        if options.page is not None:
            splice(options.page, results)
        tables = [table for e in chosen for table in tabulated(e, records)]
    for table in tables:
        console.print(results_table(table), highlight=False)
    if what == LEADERBOARD.name:
        console.print(frameworks_left_out(), highlight=False, markup=False)
    _close(console, outcome, out)
    for why in undrawn:
        complain(why)
    if undrawn and not chosen:
        raise typer.Exit(Exit.MISTAKE)
    raise typer.Exit(Exit.INCOMPLETE if outcome.lost or undrawn else Exit.DONE)


def _engine(options: ReproduceOptions) -> Engine:
    if options.engine is EngineName.LOCAL:
        return Local()
    if options.engine is EngineName.RAY:
        return Cluster(options.address, options.workers)
    return Processes(options.workers) if options.workers else Processes()


def _draw_all(
    figures: list[str], shelf: Shelf, records: Records, options: ReproduceOptions
) -> list[str]:
    """Draw figures; return why some could not be drawn."""
    drawings = {
        name: Drawing(shelf, records, options.out / f"{name}.png", options.samples, options.full)
        for name in figures
    }
    return [why for name, drawing in drawings.items() if (why := _draw(name, drawing))]


def _check(page: Path | None, figures: list[str]) -> None:
    """Raise before anything is computed what would otherwise be raised at the end."""
    if page is not None:
        around(page)
    if figures:
        pyplot()


def _draw(name: str, picture: Drawing) -> str:
    """Draw a figure, or return why not: the tables are worth having without it."""
    try:
        FIGURES[name](picture)
    except SoftleakError as error:
        return f"{name} was not drawn: {error}"
    return ""


def _close(console: Console, outcome: Reproduction, out: Path) -> None:
    if outcome.omitted:
        console.print(omission_table(outcome.omitted))
    if outcome.lost:
        count = sum(len(piece.samples) for piece in outcome.lost)
        console.print(
            f"[bold red]{count} samples were given up[/], because their workers died repeatedly. "
            "Run the same command again to retry them."
        )
    console.print(f"The page: {escape(str(out / 'index.html'))}", highlight=False)


@contextmanager
def _progress() -> Iterator[Callable[[int], Callable[[Piece], None]]]:
    """Show a bar that counts pieces and estimates the time left."""
    with counting_bar("preparing", TimeRemainingColumn()) as (bar, task):

        def begin(total: int) -> Callable[[Piece], None]:
            bar.update(task, total=total)
            return lambda piece: bar.update(task, description=escape(piece.cell), advance=1)

        yield begin
