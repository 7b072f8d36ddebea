"""What was measured of a claim's cells, and how far that decides the claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from statistics import fmean

from softleak.experiments.image_scores import PSNR
from softleak.experiments.paper_tables import EXPERIMENTS
from softleak.sweep import Records, numbers


class Standing(Enum):
    """What the records say of a claim."""

    CONFIRMED = "confirmed"
    EXCEEDED = "exceeded"
    REFUTED = "refuted"
    OPEN = "not measured yet"


Judged = tuple[Standing, str]  # the standing, and the figure that it rests on
NOT_MEASURED: Judged = (Standing.OPEN, "")


@dataclass(frozen=True)
class Found:
    """What was measured of the cells that a claim is about.

    Attributes:
        values: the measured value of each cell that was run.
        cells: the number of all cells that the claim is about.
    """

    values: Mapping[str, float]
    cells: int

    def judged(self, one: Standing | None, every: Standing, figure: str) -> Judged:
        """Return the standing of a claim, with its figure and the number of cells.

        Args:
            one: what a single cell has shown already; None if it takes all cells to tell.
            every: what holds once every cell has been run.
            figure: the value that the claim is judged by.
        """
        count = len(self.values)
        if count == self.cells:
            return one or every, f"{figure} in {count} cells"
        return one or Standing.OPEN, f"so far {figure} in {count} of {self.cells} cells"


@dataclass(frozen=True)
class Means:
    """The means of measures, by cell.

    Attributes:
        records: what was measured so far.
    """

    records: Records

    def of(self, experiment: str, measure: str, *words: str) -> Found:
        """Return the means of one measure in the cells whose names hold all words."""
        cells = EXPERIMENTS[experiment].cells
        asked = [cell.name for cell in cells if all(word in cell.name for word in words)]
        held = {n: numbers(self.records.of(experiment, n), measure) for n in asked}
        return Found({n: fmean(values) for n, values in held.items() if values}, len(asked))

    def gaps(self, experiment: str, ours: str, other: str) -> Found:
        """Return by how many dB cells that end in ``ours`` exceed those that end in ``other``."""
        found, beside = self.of(experiment, PSNR, ours), self.of(experiment, PSNR, other).values
        pairs = {name: name.removesuffix(ours) + other for name in found.values}
        gaps = {a: found.values[a] - beside[b] for a, b in pairs.items() if b in beside}
        return Found(gaps, found.cells)

    def beyond(self, experiment: str, *words: str) -> Found:
        """Return by how many dB the cells whose names hold all words exceed the paper's PSNR."""
        found = self.of(experiment, PSNR, *words)
        paper = {c.name: c.paper[PSNR] for c in EXPERIMENTS[experiment].cells if PSNR in c.paper}
        gaps = {n: value - paper[n] for n, value in found.values.items() if n in paper}
        return Found(gaps, sum(all(word in name for word in words) for name in paper))
