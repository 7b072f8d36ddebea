"""An experiment: a frozen description of its cells, with what the paper reports
of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from softleak.core.errors import OptionError
from softleak.paper.networks import Network, Shelf
from softleak.paper.sweep.records import Measures, Piece

Attack = Callable[[Sequence[int], int], Iterable[Measures]]  # sample numbers and the repetition
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
    """A measure, averaged over the samples that have it, beside a value of the paper.

    Attributes:
        title: the heading of the column.
        measure: the name of the measure in the records.
        unit: how the mean is written.
        paper: the name of the paper's value; empty if there is nothing to compare with.
        higher: whether a higher value is better.
        check: a function that raises if a package that the measure needs is not installed.
    """

    title: str
    measure: str
    unit: Unit
    paper: str = ""
    higher: bool = True
    check: Callable[[], object] = lambda: None


class Cell(Protocol):
    """One entry of a table."""

    @property
    def name(self) -> str:
        """The name of the cell in tables and records."""
        ...

    @property
    def network(self) -> Network:
        """The network that is attacked."""
        ...

    @property
    def samples(self) -> int:
        """The number of samples that the paper has in one repetition."""
        ...

    @property
    def together(self) -> int:
        """The number of samples in one batch. Batches are always whole: rounding depends on it."""
        ...

    @property
    def paper(self) -> Mapping[str, float]:
        """The paper's values, by the name that a column refers to."""
        ...

    def prepare(self, shelf: Shelf) -> Attack:
        """Do what is done once for all samples, and return the attack on them.

        Args:
            shelf: the data packs and weights that the cell needs.
        """
        ...


@dataclass(frozen=True)
class Experiment:
    """A table of the paper.

    Attributes:
        name: the name by which the experiment is run.
        title: the heading of the table.
        cells: the entries of the table, each with the paper's values.
        columns: the measures that are shown.
        samples: the number of samples per cell, unless another number is asked for.
        paper_repeats: the number of repetitions in the paper.
        across: the headings of the second dimension, with the endings of the names of their cells.
            It is empty if cells are rows and measures are columns.
    """

    name: str
    title: str
    cells: tuple[Cell, ...]
    columns: tuple[Column, ...]
    samples: int
    paper_repeats: int = 1
    across: Mapping[str, str] = field(default_factory=dict, hash=False)

    def cell(self, name: str) -> Cell:
        """Return a cell by its name, or raise ``OptionError`` if there is none."""
        for cell in self.cells:
            if cell.name == name:
                return cell
        raise OptionError(f"{self.name} has no cell {name!r}")

    def pieces(self, cell: Cell, size: Size) -> Iterator[Piece]:
        """Yield what is to be computed for a cell, in whole batches.

        The batches do not depend on how many samples are asked for, so that a larger run continues
        a smaller one.

        Args:
            cell: a cell of this experiment.
            size: how much of it to compute.
        """
        count = size.samples or (cell.samples if size.full else self.samples)
        repeats = size.repeats or (self.paper_repeats if size.full else 1)
        for repeat in range(repeats):
            for first in range(0, count, cell.together):
                numbers = tuple(range(first, first + cell.together))
                yield Piece(self.name, cell.name, repeat, numbers)


@dataclass(frozen=True)
class Size:
    """How much of an experiment is computed.

    Attributes:
        samples: the number of samples per cell and repetition; None for the experiment's own.
        repeats: the number of repetitions; None for one, or for the paper's if ``full``.
        full: whether to take the paper's numbers where none are given.
    """

    samples: int | None = None
    repeats: int | None = None
    full: bool = False
