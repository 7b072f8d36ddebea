"""``softleak``: the commands."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from softleak._version import __version__
from softleak.audit import audit_embedded
from softleak.cli.tables import audit_table, closing_words

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="What a shared gradient gives away, soft labels included.",
)


def _version(wanted: bool) -> None:
    if wanted:
        Console().print(f"softleak {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which version.")
    ] = False,
) -> None:
    """What a shared gradient gives away, soft labels included."""


@app.command()
def audit(
    each: Annotated[int, typer.Option(min=1, help="Shares of each kind of label.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Which images and labels are drawn.")] = 2,
) -> None:
    """Recover the labels behind gradients of the embedded images and print what was proved."""
    console = Console()
    with console.status("A trained LeNet computes gradients of real images…"):
        report = audit_embedded(each, seed)
    console.print(audit_table(report))
    console.print(closing_words(report))
