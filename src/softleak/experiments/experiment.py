"""An experiment: a frozen description of its cells, with what the paper reports of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from softleak.errors import OptionError
from softleak.experiments.networks import Network
from softleak.experiments.shelf import Shelf
from softleak.sweep import Measures, Piece

Attack = Callable[[Sequence[int], int], Iterable[Measures]]  # sample numbers and the repetition
NOTHING = "–"


class Unit(Enum):
    """How a mean is written; two that are written alike are equal."""

    PERCENT = "{:.1%}"
    DECIBEL = "{:.2f} dB"
    PLAIN = "{:.3f}"
    SMALL = "{:.2e}"

    def written(self, value: float | None) -> str:
        """The value as text."""
        return NOTHING if value is None else self.value.format(value)


@dataclass(frozen=True)
class Column:
    """A measure, averaged over the samples that have it, and which of the paper's it stands beside.

    Where ``paper`` is empty there is nothing to compare with. ``check`` raises if what measures it
    is not installed.
    """

    title: str
    measure: str
    unit: Unit
    paper: str = ""
    higher: bool = True  # is better
    check: Callable[[], object] = lambda: None


class Cell(Protocol):
    """One entry of a table."""

    @property
    def name(self) -> str:
        """What it is called in tables and records."""
        ...

    @property
    def network(self) -> Network:
        """What is attacked."""
        ...

    @property
    def samples(self) -> int:
        """How many the paper has in one repetition."""
        ...

    @property
    def together(self) -> int:
        """Samples in one batch: always whole batches, as rounding depends on them."""
        ...

    @property
    def paper(self) -> Mapping[str, float]:
        """What the paper reports, by the name a column refers to."""
        ...

    def prepare(self, shelf: Shelf) -> Attack:
        """Everything that is done once for all samples."""
        ...


@dataclass(frozen=True)
class Experiment:
    """A table of the paper.

    Where its cells have two dimensions, ``across`` are the titles of the second and how the names
    of their cells end.
    """

    name: str
    title: str
    cells: tuple[Cell, ...]
    columns: tuple[Column, ...]
    samples: int  # unless said otherwise
    paper_repeats: int = 1
    across: Mapping[str, str] = field(default_factory=dict, hash=False)

    def cell(self, name: str) -> Cell:
        """A cell by its name."""
        for cell in self.cells:
            if cell.name == name:
                return cell
        raise OptionError(f"{self.name} has no cell {name!r}")

    def pieces(self, cell: Cell, size: Size) -> Iterator[Piece]:
        """What is to be computed for a cell, in batches that do not depend on how much is."""
        count = size.samples or (cell.samples if size.full else self.samples)
        repeats = size.repeats or (self.paper_repeats if size.full else 1)
        for repeat in range(repeats):
            for first in range(0, count, cell.together):
                numbers = tuple(range(first, first + cell.together))
                yield Piece(self.name, cell.name, repeat, numbers)


@dataclass(frozen=True)
class Size:
    """How much to compute: so many samples and repetitions, the paper's own, or a few."""

    samples: int | None = None
    repeats: int | None = None
    full: bool = False
