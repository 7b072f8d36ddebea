"""Declare the options of ``softleak reproduce`` and ``softleak train``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

# The names of experiments, figures and recipes; the objects themselves need torch. A test holds
# the two together.
TABLE_NAMES = ("table1", "table2", "table3", "table4", "table5", "fcn", "batches", "leaderboard")
FIGURE_NAMES = ("figure1", "figure2", "figure3", "figure4", "figure5", "figure6", "figure_batches")
RECIPE_NAMES = ("lenet", "resnet18", "resnet18_cifar", "alexnet_flowers", "resnet18_flowers")
EVERYTHING = "all"

What = Enum("What", {n: n for n in (*TABLE_NAMES, *FIGURE_NAMES, EVERYTHING)}, type=str)  # type: ignore[misc]
Trained = Enum("Trained", {name: name for name in RECIPE_NAMES}, type=str)  # type: ignore[misc]


class EngineName(str, Enum):
    """The places where samples can be computed."""

    LOCAL, PROCESSES, RAY = "local", "processes", "ray"


@dataclass(frozen=True)
class ReproduceOptions:
    """The options of ``softleak reproduce`` as they were given."""

    what: Annotated[What, Argument(help="The table or figure of the paper.")]
    samples: Annotated[
        int | None,
        Option(
            min=1,
            help="Samples per cell, rounded up to whole batches: of 15 in gradient matching "
            "(tables 3 and 4), else of 1.",
        ),
    ] = None
    repeats: Annotated[
        int | None, Option(min=1, help="Repetitions per cell, each with other samples.")
    ] = None
    full: Annotated[
        bool, Option("--full", help="Use as many samples and repetitions as the paper.")
    ] = False
    only: Annotated[
        str, Option(metavar="TEXT", help="Run only the cells whose name contains this text.")
    ] = ""
    data: Annotated[
        Path | None,
        Option(metavar="DIR", exists=True, file_okay=False, help="A folder of data packs."),
    ] = None
    weights: Annotated[
        Path | None,
        Option(
            metavar="DIR", exists=True, file_okay=False,
            help="A folder of trained networks, as `softleak train` writes them.",
        ),
    ] = None  # fmt: skip
    engine: Annotated[EngineName, Option(help="Where to compute.")] = EngineName.LOCAL
    workers: Annotated[
        int | None, Option(min=1, help="Number of worker processes (default: one per core).")
    ] = None
    address: Annotated[
        str | None,
        Option(help="The address of a Ray cluster; `auto` is the one this machine belongs to."),
    ] = None
    out: Annotated[
        Path,
        Option(metavar="DIR", help="The folder for records and results; a run there is continued."),
    ] = Path("softleak-results")
    page: Annotated[
        Path | None,
        Option(metavar="FILE", help="Also write the results between the marks of this .md file."),
    ] = None
    compiled: Annotated[
        bool,
        Option(
            "--compiled", help="Compile gradient matching (tables 3 and 4). Needs a C++ compiler."
        ),
    ] = False


@dataclass(frozen=True)
class TrainOptions:
    """The options of ``softleak train`` as they were given."""

    network: Annotated[Trained, Argument(help="The network to train.")]
    images: Annotated[Path, Option("--train", metavar="FILE|DIR", help="The images to train on.")]
    test: Annotated[
        Path | None, Option(metavar="FILE|DIR", help="The images to measure the accuracy on.")
    ] = None
    out: Annotated[Path, Option(metavar="DIR", help="The folder for the checkpoint.")] = Path(".")
    epochs: Annotated[
        int | None, Option(min=1, help="The number of epochs, if not the recipe's.")
    ] = None
    smoothing: Annotated[
        float | None, Option(min=0, max=1, help="The ε of label smoothing, if not the recipe's.")
    ] = None
    mixup: Annotated[
        float | None, Option(min=0, max=1, help="The largest weight of a mixed-in image.")
    ] = None
    seed: Annotated[int, Option(min=0, help="The seed of weights and batches.")] = 0
    threads: Annotated[
        int | None, Option(min=1, help="Number of threads (default: one per core).")
    ] = None
