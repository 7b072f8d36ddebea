"""``softleak reproduce``: the paper's tables and figures, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from typer import Argument, Option

from softleak.cli.exits import Exit, complain, mistakes
from softleak.cli.tables import omission_table, results_table
from softleak.errors import SoftleakError
from softleak.experiments import EXPERIMENTS, Outcome, Shelf, Size, reproduce, tabulated
from softleak.report.figures import FIGURES, Drawing
from softleak.report.figures.canvas import pyplot
from softleak.report.results import Results, around, splice, write_results
from softleak.sweep import Cluster, Engine, Local, Piece, Processes, Records

ALL = "all"
What = Enum("What", {name: name for name in (*EXPERIMENTS, *FIGURES, ALL)}, type=str)  # type: ignore[misc]


class EngineName(str, Enum):
    """Where cells are computed."""

    LOCAL = "local"
    PROCESSES = "processes"
    RAY = "ray"

    def engine(self, workers: int | None, address: str | None) -> Engine:
        """The engine of this name."""
        if self is EngineName.LOCAL:
            return Local()
        if self is EngineName.RAY:
            return Cluster(address, workers)
        return Processes(workers) if workers else Processes()


DataFolder = Annotated[
    Path | None,
    Option(metavar="DIR", exists=True, file_okay=False, help="A folder of data packs."),
]
WeightsFolder = Annotated[
    Path | None,
    Option(
        metavar="DIR", exists=True, file_okay=False,
        help="A folder of trained networks, as `softleak train` writes them.",
    ),
]  # fmt: skip
Address = Annotated[
    str | None, Option(help="Of a Ray cluster; `auto`: the one this machine is part of.")
]
Page = Annotated[
    Path | None,
    Option(metavar="FILE", help="Also put the results between the marks of this .md file."),
]
Samples = Annotated[
    int | None,
    Option(
        min=1,
        help="Samples of each cell, rounded up to whole batches: of 15 in gradient matching "
        "(tables 3 and 4), else of 1.",
    ),
]
Compiled = Annotated[
    bool,
    Option("--compiled", help="Compile gradient matching (tables 3 and 4); needs a C++ compiler."),
]
Out = Annotated[Path, Option(metavar="DIR", help="Records and results; a run there is continued.")]


def reproduce_command(
    what: Annotated[What, Argument(help="Which of the paper's tables or figures.")],
    samples: Samples = None,
    repeats: Annotated[int | None, Option(min=1, help="Each of other samples.")] = None,
    full: Annotated[bool, Option("--full", help="As many as the paper has.")] = False,
    only: Annotated[str, Option(metavar="TEXT", help="Cells whose name contains this.")] = "",
    data: DataFolder = None,
    weights: WeightsFolder = None,
    engine: Annotated[EngineName, Option(help="Where to compute.")] = EngineName.LOCAL,
    workers: Annotated[int | None, Option(min=1, help="How many; as many as cores.")] = None,
    address: Address = None,
    out: Out = Path("softleak-results"),
    page: Page = None,
    compiled: Compiled = False,
) -> None:
    """Run a table or draw a figure of the paper, ours beside the paper's.

    [bold]softleak reproduce table2 --samples 50[/bold]

    Every sample is recorded as soon as it is computed (records.sqlite); stopped or killed, the
    same command goes on where it was. Cells whose data or weights are not at hand are named.
    """
    console = Console()
    chosen = [e for name, e in EXPERIMENTS.items() if what.value in (name, ALL)]
    figures = [name for name in FIGURES if what.value in (name, ALL)]
    shelf = Shelf(data, weights)
    with mistakes():
        _check(page, figures)
    with mistakes(), Records(out) as records, _progress() as begin:
        outcome = reproduce(
            chosen, Size(samples, repeats, full), shelf, records,
            engine.engine(workers, address), only, compiled, begin,
        )  # fmt: skip
        pictures = {n: Drawing(shelf, records, out / f"{n}.png", samples, full) for n in figures}
        undrawn = [why for name, picture in pictures.items() if (why := _draw(name, picture))]
        results = Results.of(records)
        write_results(out, results)
        if page is not None:
            splice(page, results)
        tables = [table for e in chosen for table in tabulated(e, records)]
    for table in tables:
        console.print(results_table(table), highlight=False)
    _close(console, outcome, out)
    for why in undrawn:
        complain(why)
    if undrawn and not chosen:
        raise typer.Exit(Exit.MISTAKE)
    raise typer.Exit(Exit.INCOMPLETE if outcome.lost or undrawn else Exit.DONE)


def _check(page: Path | None, figures: list[str]) -> None:
    """What would fail at the end fails before anything is computed."""
    if page is not None:
        around(page)
    if figures:
        pyplot()


def _draw(name: str, picture: Drawing) -> str:
    """Draw a figure, or say why not: the tables are worth having without it."""
    try:
        FIGURES[name](picture)
    except SoftleakError as error:
        return f"{name} was not drawn: {error}"
    return ""


def _close(console: Console, outcome: Outcome, out: Path) -> None:
    if outcome.omitted:
        console.print(omission_table(outcome.omitted))
    if outcome.lost:
        count = sum(len(piece.samples) for piece in outcome.lost)
        console.print(
            f"[bold red]{count} samples were given up[/]: their workers died again and again. "
            "Run the command once more to try them again."
        )
    console.print(f"The page: {escape(str(out / 'index.html'))}", highlight=False)


@contextmanager
def _progress() -> Iterator[Callable[[int], Callable[[Piece], None]]]:
    """A bar that counts pieces and estimates the time left, on the error stream."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("preparing", total=None)

        def begin(total: int) -> Callable[[Piece], None]:
            bar.update(task, total=total)
            return lambda piece: bar.update(task, description=escape(piece.cell), advance=1)

        yield begin
