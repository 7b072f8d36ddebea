"""``softleak``: the commands."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from softleak._version import __version__
from softleak.cli.audit import audit
from softleak.cli.reproduce import reproduce_command
from softleak.cli.system import doctor, models
from softleak.cli.train import train_command

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
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
    """What a shared gradient gives away, soft labels included.

    A defender's instrument: audit your own models and updates before they leave.
    Start with [bold]softleak audit[/bold], which needs nothing else.
    """


app.command(rich_help_panel="Audit")(audit)
app.command("reproduce", rich_help_panel="The paper")(reproduce_command)
app.command("train", rich_help_panel="The paper")(train_command)
app.command(rich_help_panel="About this installation")(models)
app.command(rich_help_panel="About this installation")(doctor)
