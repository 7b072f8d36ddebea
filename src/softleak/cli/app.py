"""The face of ``softleak``: its commands, and nothing that takes time to import.

What a command does is imported when it runs, so that ``--help`` and completion answer at once.
"""

from __future__ import annotations

import ast
import ctypes
import shlex
import sys
from collections.abc import Callable
from inspect import Signature, getsource, signature
from itertools import pairwise
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from softleak._version import __version__
from softleak.cli.options import AuditOptions, ClaimOptions, DiffOptions
from softleak.paper.options import ReproduceOptions, TrainOptions

# Parameters of glibc's mallopt, from malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
KEPT_BYTES = 2**30


def keep_freed_memory() -> bool:
    """Have malloc keep freed memory of the process; return whether this system can."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # a C library other than glibc
        return False
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))


Command = TypeVar("Command", bound=Callable[..., None])


def texts_below(options: type) -> dict[str, str]:
    """Return the string that stands below each field of a class, by the field's name."""
    try:
        (defined,) = ast.parse(getsource(options)).body
    except OSError:  # a program that was packed without its source has no help of its options
        return {}
    return {
        field.target.id: " ".join(str(text.value.value).split())
        for field, text in pairwise(getattr(defined, "body", ()))
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }  # fmt: skip


def takes(options: type) -> Callable[[Command], Command]:
    """Return a decorator that gives a command one parameter for each field of a dataclass.

    The fields are annotated with Typer's ``Option`` or ``Argument``; the string below one is its
    help.
    """
    hints: dict[str, Any] = get_type_hints(options, include_extras=True)
    for name, text in texts_below(options).items():
        hints[name].__metadata__[0].help = text
    given = signature(options).parameters.values()
    parameters = [one.replace(annotation=hints[one.name]) for one in given]

    def decorate(command: Command) -> Command:
        command.__annotations__ = hints
        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return command

    return decorate


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"softleak {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Find out what a shared gradient gives away, soft labels included.

    softleak is a defender's instrument: audit your own models and updates before they leave.
    Start with [bold]softleak audit[/bold], which runs on a sample of its own.
    """
    keep_freed_memory()


@app.command(rich_help_panel="Audit")
@takes(AuditOptions)
def audit(**given: Any) -> None:  # noqa: ANN401 - the fields of AuditOptions
    """Find out what an update gives away: its label, its feature, its input.

    Without options this audits the sample that comes with softleak: a trained LeNet, and
    gradients of real images with one-hot, smoothed, mixed and arbitrary labels.

    [bold]softleak audit --model lenet --weights w.safetensors --share update.safetensors[/bold]

    Nothing in a file is executed. Exit codes: 0 the audit is done; 2 nothing was audited (a wrong
    option, an unreadable file); 3 something named by --fail-on leaks; 4 some files of a folder
    were refused; 5 something named by --fail-on could not be attacked.
    """
    from softleak.cli.audit import carry_out
    from softleak.cli.options import Request

    carry_out(Request(**given, command=shlex.join(["softleak", *sys.argv[1:]])))


@app.command(rich_help_panel="Audit")
@takes(ClaimOptions)
def claim(**given: Any) -> None:  # noqa: ANN401 - the fields of ClaimOptions
    """Check what is claimed of a protection: its clip, its noise, its ε.

    [bold]softleak claim --of my_app:mods --said clip=1,epsilon=8,delta=1e-5[/bold]

    Exit codes: 0 nothing contradicts the claim; 2 nothing was checked; 3 something does.
    """
    from softleak.cli.claim import carry_out

    carry_out(ClaimOptions(**given))


@app.command(rich_help_panel="Audit")
@takes(DiffOptions)
def diff(**given: Any) -> None:  # noqa: ANN401 - the fields of DiffOptions
    """Say what a change of model or defence did: compare the audit.json of two audits.

    [bold]softleak diff before/audit.json after/audit.json --fail-on-worse[/bold]

    A.JSON is the audit.json of the earlier audit, B.JSON that of the later one. Updates are
    compared by name. Exit codes: 0 they were compared; 2 they could not be, for example because
    no name is in both; 3 something is worse and --fail-on-worse was given.
    """
    from softleak.cli.diff import carry_out

    carry_out(DiffOptions(**given))


@app.command(rich_help_panel="The paper")
@takes(ReproduceOptions)
def reproduce(**given: Any) -> None:  # noqa: ANN401 - the fields of ReproduceOptions
    """Run a table or draw a figure of the paper, with the paper's values beside ours.

    [bold]softleak reproduce table2 --samples 50[/bold]

    Every sample is recorded as soon as it is computed (records.sqlite). If the command is stopped
    or killed, the same command continues. Cells whose data or weights are missing are named.
    """
    from softleak.paper.commands import reproduce_tables as carry_out

    carry_out(ReproduceOptions(**given))


@app.command(rich_help_panel="The paper")
@takes(TrainOptions)
def train(**given: Any) -> None:  # noqa: ANN401 - the fields of TrainOptions
    """Train a network for `softleak reproduce --weights DIR`; its file records the recipe.

    [bold]softleak train resnet18_cifar --train cifar10_train10k.npz --test cifar10_test.npz[/bold]
    """
    from softleak.paper.commands import train_network as carry_out

    carry_out(TrainOptions(**given))


@app.command(rich_help_panel="About this installation")
def models() -> None:
    """List the models that --model knows by name, and how an audit recovers the input of each."""
    from softleak.paper.commands import show_models

    show_models()


@app.command(rich_help_panel="About this installation")
def doctor() -> None:
    """Show what is installed, which extras are missing, and what there is to compute on."""
    from softleak.cli.doctor import show_installation

    show_installation()
