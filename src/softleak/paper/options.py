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

    what: Annotated[What, Argument()]
    """The table or figure of the paper."""
    samples: Annotated[int | None, Option(min=1)] = None
    """Samples per cell, rounded up to whole batches: of 15 in gradient matching (tables 3 and 4),
    else of 1."""
    repeats: Annotated[int | None, Option(min=1)] = None
    """Repetitions per cell, each with other samples."""
    full: Annotated[bool, Option("--full")] = False
    """Use as many samples and repetitions as the paper."""
    only: Annotated[str, Option(metavar="TEXT")] = ""
    """Run only the cells whose name contains this text."""
    data: Annotated[Path | None, Option(metavar="DIR", exists=True, file_okay=False)] = None
    """A folder of data packs."""
    weights: Annotated[Path | None, Option(metavar="DIR", exists=True, file_okay=False)] = None
    """A folder of trained networks, as `softleak train` writes them."""
    engine: Annotated[EngineName, Option()] = EngineName.LOCAL
    """Where to compute."""
    workers: Annotated[int | None, Option(min=1)] = None
    """Number of worker processes (default: one per core)."""
    address: Annotated[str | None, Option()] = None
    """The address of a Ray cluster; `auto` is the one this machine belongs to."""
    out: Annotated[Path, Option(metavar="DIR")] = Path("softleak-results")
    """The folder for records and results; a run there is continued."""
    page: Annotated[Path | None, Option(metavar="FILE")] = None
    """Also write the results between the marks of this .md file."""
    compiled: Annotated[bool, Option("--compiled")] = False
    """Compile gradient matching (tables 3 and 4). Needs a C++ compiler."""


@dataclass(frozen=True)
class TrainOptions:
    """The options of ``softleak train`` as they were given."""

    network: Annotated[Trained, Argument()]
    """The network to train."""
    images: Annotated[Path, Option("--train", metavar="FILE|DIR")]
    """The images to train on."""
    test: Annotated[Path | None, Option(metavar="FILE|DIR")] = None
    """The images to measure the accuracy on."""
    out: Annotated[Path, Option(metavar="DIR")] = Path(".")
    """The folder for the checkpoint."""
    epochs: Annotated[int | None, Option(min=1)] = None
    """The number of epochs, if not the recipe's."""
    smoothing: Annotated[float | None, Option(min=0, max=1)] = None
    """The ε of label smoothing, if not the recipe's."""
    mixup: Annotated[float | None, Option(min=0, max=1)] = None
    """The largest weight of a mixed-in image."""
    seed: Annotated[int, Option(min=0)] = 0
    """The seed of weights and batches."""
    threads: Annotated[int | None, Option(min=1)] = None
    """Number of threads (default: one per core)."""
