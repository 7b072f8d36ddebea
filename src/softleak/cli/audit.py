"""``softleak audit``: from update files to a verdict, a page and an exit code."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from softleak.atomic import make_folder
from softleak.audit import Audit, Leak, Options, Reading
from softleak.cli import jobs
from softleak.cli import options as o
from softleak.cli.exits import Exit, mistakes
from softleak.cli.request import Request
from softleak.cli.tables import audit_table, closing_words, refusal_table, what_if_table
from softleak.report import as_data, write_json, write_page
from softleak.share import Precision


def audit(
    model: o.Model = None,
    weights: o.Weights = None,
    random_weights: o.RandomWeights = False,
    share: o.Share = None,
    kind: o.WhatKind = None,
    before: o.Before = None,
    after: o.After = None,
    lr: o.Rate = None,
    each: o.Each = 2,
    seed: o.Seed = 2,
    input_shape: o.InputShape = None,
    head: o.HeadName = None,
    samples: o.Samples = None,
    precision: o.Format = None,
    classes: o.Classes = None,
    normalise: o.Normalise = None,
    unknown_scale: o.UnknownScale = False,
    noise: o.Noise = 0.0,
    train_mode: o.TrainMode = False,
    truth: o.TruthFile = None,
    labels_only: o.LabelsOnly = False,
    match_seconds: o.MatchSeconds = 30.0,
    what_if: o.WhatIf = False,
    seeds: o.Seeds = 2,
    out: o.Out = Path("softleak-audit"),
    as_json: o.Json = False,
    fail_on: o.FailOn = None,
) -> None:
    """Say what an update gives away: its label, its feature, its input.

    Without options it audits the sample that comes with softleak: a trained LeNet and gradients
    of real images with one-hot, smoothed, mixed and arbitrary labels.

    [bold]softleak audit --model lenet --weights w.safetensors --share update.safetensors[/bold]

    Nothing in a file is executed. Exit codes: 0 done; 2 nothing was audited (a wrong option, an
    unreadable file); 3 something named by --fail-on leaks; 4 some files of a folder were refused;
    5 something named by --fail-on could not be attacked.
    """
    named = frozenset(fail_on or ())
    asked = Options(
        scale="unknown" if unknown_scale else None, noise=noise, inputs=not labels_only,
        seconds=match_seconds, samples=samples,
        declared=kind is not None or before is not None,
    )  # fmt: skip
    rounded = cast(Precision | None, precision and precision.value)
    job = Request(
        model=model, weights=weights, random_weights=random_weights, share=share, before=before,
        after=after, reading=Reading(kind, lr, rounded), each=each, seed=seed,
        input_shape=input_shape, head=head, classes=classes, normalise=normalise, options=asked,
        train_mode=train_mode, truth=truth, seeds=seeds if what_if else 0, fail_on=named,
        command=shlex.join(["softleak", *sys.argv[1:]]),
    )  # fmt: skip
    with mistakes():
        with _progress() as step:
            found = jobs.run(job, step)
        _write(out, found)
    _show(Console(stderr=as_json), found, out, as_json, untried=what_if)
    raise typer.Exit(_exit_code(found, named))


def _exit_code(found: Audit, fail_on: frozenset[Leak]) -> Exit:
    if not found.reports:
        return Exit.MISTAKE
    if any(report.leaks & fail_on for report in found.reports):
        return Exit.LEAK
    if any(report.unattacked & fail_on for report in found.reports):
        return Exit.UNATTACKED
    return Exit.INCOMPLETE if found.refused else Exit.DONE


def _write(out: Path, found: Audit) -> None:
    make_folder(out)
    write_page(out / "index.html", found)
    write_json(out / "audit.json", found)


def _show(console: Console, found: Audit, out: Path, as_json: bool, untried: bool) -> None:
    if untried and found.reports and found.what_if is None:
        console.print("No share gave its label, feature or input away, so no defence was tried.")
    if as_json:
        sys.stdout.write(json.dumps(as_data(found), allow_nan=False) + "\n")
        return
    console.print(audit_table(found))
    if found.refused:
        console.print(refusal_table(found))
    if found.what_if is not None:
        console.print(what_if_table(found.what_if))
    console.print(closing_words(found))
    console.print(f"The page: {escape(str(out / 'index.html'))}", highlight=False)


@contextmanager
def _progress() -> Iterator[jobs.Step]:
    """A bar that counts shares, then settings of defences, on the error stream."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
    )  # fmt: skip
    quiet = Console(stderr=True)
    with Progress(*columns, console=quiet, transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def step(name: str, total: int) -> None:
            if name:
                bar.update(task, description=escape(name), total=total, advance=1)
            else:  # something new begins
                bar.update(task, total=total, completed=0)

        yield step
