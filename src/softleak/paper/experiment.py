"""An experiment: a frozen description of its cells, with what the paper reports of each."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import Enum
from typing import ClassVar

from softleak.core.errors import OptionError
from softleak.paper.data import FILES
from softleak.paper.networks import NETWORKS, AttackedNetwork, Network, Shelf
from softleak.paper.sweep import Measures, Piece

NOTHING = "–"  # how a value that does not exist is written


class Unit(Enum):
    """How a mean is written; two means that are written alike count as equal."""

    PERCENT = "{:.1%}"
    DECIBEL = "{:.2f} dB"
    PLAIN = "{:.3f}"
    SMALL = "{:.2e}"

    def written(self, value: float | None) -> str:
        """Return the value as text, or a dash if there is none."""
        return NOTHING if value is None else self.value.format(value)


@dataclass(frozen=True)
class Column:
    """A measure, averaged over the samples that have it, beside a value of the paper."""

    title: str  # the heading of the column
    measure: str  # the name of the measure in the records
    unit: Unit  # how the mean is written
    paper: str = ""  # the name of the paper's value; empty if there is nothing to compare with
    higher: bool = True  # whether a higher value is better
    # Raises if a package that the measure needs is not installed.
    check: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Cell(ABC):
    """An attack on a network, which measures samples one by one or several together."""

    everything: ClassVar[bool] = False  # whether shares hold the gradient of every parameter
    evidence: ClassVar[bool] = True  # whether the network's layers are searched for evidence

    subject: str  # the name of the network in ``NETWORKS``
    _: KW_ONLY
    # The paper's values, by the name that a column refers to; empty if it has none.
    paper: Mapping[str, float] = field(default_factory=dict, hash=False)
    samples: int  # the number of samples that the paper has in one repetition
    together: int = 1  # the samples in one batch, which is always whole: rounding depends on it

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the cell in tables and records."""

    @property
    def network(self) -> Network:
        return NETWORKS[self.subject]

    def attacked(self, shelf: Shelf) -> AttackedNetwork:
        """Return the network under attack, prepared once for all samples."""
        return AttackedNetwork.of(
            self.network, shelf, evidence=self.evidence, everything=self.everything
        )

    def measured_together(
        self, target: AttackedNetwork, numbers: Sequence[int], repeat: int
    ) -> Iterable[Measures]:
        """Return what is measured of each of some samples of a repetition."""
        return (self.measured(target, number, repeat) for number in numbers)

    def measured(self, target: AttackedNetwork, number: int, repeat: int) -> Measures:
        """Return what is measured of one sample of a repetition."""
        raise NotImplementedError


PAPER = json.loads(FILES.joinpath("paper.json").read_text("utf-8"))


@dataclass(frozen=True)
class Experiment:
    """A table of the paper; its cells are given the paper's values for them."""

    name: str  # the name by which the experiment is run
    title: str  # the heading of the table
    cells: tuple[Cell, ...]  # the entries of the table
    columns: tuple[Column, ...]  # the measures that are shown
    samples: int  # the number of samples per cell, unless another number is asked for
    paper_repeats: int = 1  # the number of repetitions in the paper
    # The headings of the second dimension, with the endings of the names of their cells; empty if
    # cells are rows and measures are columns.
    across: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        values = PAPER.get(self.name, {})
        cells = tuple(replace(cell, paper=values.get(cell.name, {})) for cell in self.cells)
        object.__setattr__(self, "cells", cells)

    def cell(self, name: str) -> Cell:
        """Return a cell by its name, or raise ``OptionError`` if there is none."""
        for cell in self.cells:
            if cell.name == name:
                return cell
        raise OptionError(f"{self.name} has no cell {name!r}")

    def pieces(self, cell: Cell, size: Size) -> Iterator[Piece]:
        """Yield what is to be computed for a cell, in batches that any larger run continues."""
        count = size.samples or (cell.samples if size.full else self.samples)
        repeats = size.repeats or (self.paper_repeats if size.full else 1)
        for repeat in range(repeats):
            for first in range(0, count, cell.together):
                numbers = tuple(range(first, first + cell.together))
                yield Piece(self.name, cell.name, repeat, numbers)


@dataclass(frozen=True)
class Size:
    """How much of an experiment is computed."""

    samples: int | None = None  # per cell and repetition; None for the experiment's own number
    repeats: int | None = None  # the repetitions; None for one, or for the paper's if ``full``
    full: bool = False  # whether to take the paper's numbers where none are given
