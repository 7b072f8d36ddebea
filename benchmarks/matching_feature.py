"""Measure what the feature term is worth, by the number of evaluations.

    python -m benchmarks.matching_feature [--parts 0.25 0.5 1] [--data DIR] [--compiled]

It runs one repetition of Table 4's protocol with recovered labels. It prints the PSNR when the
head's gradient is matched (α=1 β=0) and when the feature is matched instead (α=0 β=2), each with a
part of the paper's evaluations, and the gain image by image with its standard error.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

from rich.console import Console

from softleak.matching import L2, LBFGS, Adam
from softleak.paper.networks import Shelf
from softleak.paper.tables import PSNR, TABLE4, MatchingCell

COMPARED_WEIGHTS = ((1.0, 0.0), (0.0, 2.0))  # α and β: without the feature, and with it


def pairs(only: str) -> list[tuple[MatchingCell, MatchingCell]]:
    """Return pairs of cells that differ in the feature term alone."""
    by_weights = [
        [
            cell
            for cell in TABLE4.cells
            if isinstance(cell, MatchingCell)
            and (cell.objective.alpha, cell.objective.beta) == weights
            and only in cell.name
        ]
        for weights in COMPARED_WEIGHTS
    ]
    return list(zip(*by_weights, strict=True))


def qualities(cell: MatchingCell, shelf: Shelf, part: float, compiled: bool) -> list[float]:
    """Return the PSNR of every image of a repetition in dB."""
    paper = LBFGS() if isinstance(cell.objective, L2) else Adam()
    optimiser = replace(paper, steps=round(paper.steps * part))
    attack = replace(cell, optimiser=optimiser, compiled=compiled)
    target = attack.attacked(shelf)
    numbers = range(cell.samples)
    batches = (numbers[i : i + cell.together] for i in range(0, len(numbers), cell.together))
    return [
        float(str(found[PSNR]))
        for batch in batches
        for found in attack.measured_together(target, batch, 0)
    ]


def main() -> None:
    """Measure every pair and print a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", type=float, nargs="+", default=[0.25, 0.5, 1.0])
    parser.add_argument("--data", type=Path, help="a folder of data packs")
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--compiled", action="store_true")
    given = parser.parse_args()
    console, shelf = Console(width=120, highlight=False), Shelf(given.data)
    for part in given.parts:
        for cells in pairs(given.only):
            plain, feature = (qualities(cell, shelf, part, given.compiled) for cell in cells)
            gains = [after - before for before, after in zip(plain, feature, strict=True)]
            console.print(
                f"{cells[0].protocol.name:9} {type(cells[0].objective).__name__:7} {part:5.0%} "
                f"{mean(plain):6.2f} dB, with the feature {mean(feature):6.2f} dB, gain "
                f"{mean(gains):+.2f} ± {stdev(gains) / len(gains) ** 0.5:.2f}"
            )


if __name__ == "__main__":
    main()
