"""The commands ``softleak reproduce`` and ``softleak train``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import TimeRemainingColumn
from rich.table import Table

from softleak.cli.exits import Exit, complain, counting_bar, mistakes, plain_table
from softleak.core.errors import ModelError, SoftleakError
from softleak.core.head import Head
from softleak.inversion.chain import Chain
from softleak.io.atomic import make_folder
from softleak.io.formats import fingerprint
from softleak.paper import data
from softleak.paper.experiment import Size
from softleak.paper.figures import FIGURES, Drawing, pyplot
from softleak.paper.leaderboard import LEADERBOARD, frameworks_left_out, runnable
from softleak.paper.models import MODELS
from softleak.paper.networks import Shelf
from softleak.paper.options import EVERYTHING, EngineName, ReproduceOptions, TrainOptions
from softleak.paper.reproduction import (
    EXPERIMENTS,
    Key,
    ResultsPage,
    around,
    reproduce,
    results_table,
    splice,
    tabulated,
    write_results,
)
from softleak.paper.sweep import Engine, Piece, Records, cluster, local, processes
from softleak.paper.training import RECIPES, Recipe, accuracy, save, train


def show_models() -> None:
    """Print a row per model: its input, size and head, and how its input is recovered."""
    table = Table(title="Models by name", title_justify="left")
    for column in ("--model", "input", "parameters", "head", "the input is recovered by"):
        table.add_column(column, justify="right" if column == "parameters" else "left")
    for name, spec in MODELS.items():
        with torch.device("meta"):  # nothing is computed, so nothing is allocated
            model = spec().eval()
        count = sum(p.numel() for p in model.parameters())
        shape, head = "x".join(map(str, spec.input_shape)), Head.of(model)
        try:
            Chain.of(model, head, spec.input_shape)
            way = "exact inversion"
        except ModelError:
            way = "gradient matching"
        table.add_row(name, shape, f"{count:,}", head.name, way)
    console = Console()
    console.print(table)
    console.print(
        "For your own model give --model package.module:factory; any classifier that ends in an "
        "nn.Linear will do."
    )


_KEPT = "All samples that were computed are in {}/records.sqlite; the same command continues."


def reproduce_tables(options: ReproduceOptions) -> None:
    """Run the tables and draw the figures asked for, show them, and end with an exit code."""
    console, out, what = Console(), options.out, options.what.value
    chosen = [e for name, e in EXPERIMENTS.items() if what in (name, EVERYTHING)]
    figures = [name for name in FIGURES if what in (name, EVERYTHING)]
    shelf = Shelf(options.data, options.weights)
    with mistakes():
        if options.page is not None:  # what is wrong with it is said before hours of computing
            around(options.page)
        if figures:
            pyplot()
        to_run = [runnable(experiment, options.only) for experiment in chosen]
    with mistakes(_KEPT.format(out)), Records(out) as records, _progress() as begin:
        size = Size(options.samples, options.repeats, options.full)
        omitted, lost = reproduce(
            to_run, size, shelf, records, _engine(options), options.only, options.compiled, begin
        )
        undrawn = list(_drawn(figures, shelf, records, options))
        results = ResultsPage.of(records)
        write_results(out, results)
        if options.page is not None:
            splice(options.page, results)
        tables = [table for e in chosen for table in tabulated(e, records)]
    for table in tables:
        console.print(results_table(table), highlight=False)
    if what == LEADERBOARD.name:
        console.print(frameworks_left_out(), highlight=False, markup=False)
    _close(console, omitted, lost, out)
    for why in undrawn:
        complain(why)
    if undrawn and not chosen:
        raise typer.Exit(Exit.MISTAKE)
    raise typer.Exit(Exit.INCOMPLETE if lost or undrawn else Exit.DONE)


def _engine(options: ReproduceOptions) -> Engine:
    match options.engine:
        case EngineName.LOCAL:
            return local
        case EngineName.RAY:
            return partial(cluster, address=options.address, workers=options.workers)
        case EngineName.PROCESSES:
            return partial(processes, workers=options.workers)


def _drawn(
    figures: list[str], shelf: Shelf, records: Records, options: ReproduceOptions
) -> Iterator[str]:
    """Draw figures; yield why some were not drawn: the tables are worth having without them."""
    for name in figures:
        path = options.out / f"{name}.png"
        try:
            FIGURES[name](Drawing(shelf, records, path, options.samples, options.full))
        except SoftleakError as error:
            yield f"{name} was not drawn: {error}"


def _close(console: Console, omitted: dict[Key, str], lost: list[Piece], out: Path) -> None:
    if omitted:
        rows = ((f"{experiment}: {cell}", files) for (experiment, cell), files in omitted.items())
        console.print(plain_table("Not run", ("cell", "needs, in --data or --weights"), rows))
    if lost:
        count = sum(len(piece.samples) for piece in lost)
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


def train_network(options: TrainOptions) -> None:
    """Train a network, measure it if there are images to test on, and write its checkpoint."""
    console = Console(highlight=False)
    recipe, test = _recipe(options), options.test
    if options.threads is not None:
        torch.set_num_threads(options.threads)

    def tell(epoch: int, loss: float) -> None:
        console.print(f"epoch {epoch} of {recipe.epochs}: loss {loss:.4f}")

    # Whatever is wrong is said before hours of training.
    with mistakes("Nothing was kept: weights are written after the last epoch."):
        make_folder(options.out)
        learnt = data.load(options.images, data.Split.TRAIN, recipe.size)
        unseen = None if test is None else data.load(test, data.Split.TEST, recipe.size)
        model = train(recipe, learnt, tell)
        told = fingerprint(options.images) if options.images.is_file() else "a folder"
        notes = {"data": options.images.name, "data_sha256": told}
        if test is not None and unseen is not None:
            measured = accuracy(model, unseen)
            notes |= {"test_data": test.name, "test_accuracy": f"{measured:.4f}"}
            console.print(f"accuracy {measured:.1%} on {escape(test.name)}")
        path = options.out / f"{options.network.value}.safetensors"
        save(model, recipe, path, **notes)
    console.print(f"written: {escape(str(path))}")


def _recipe(options: TrainOptions) -> Recipe:
    changes = {
        "epochs": options.epochs, "smoothing": options.smoothing, "mixup": options.mixup,
        "seed": options.seed,
    }  # fmt: skip
    given = {name: value for name, value in changes.items() if value is not None}
    return replace(RECIPES[options.network.value], **given)  # type: ignore[arg-type]
