"""Compare the columns of Tables 3 and 4 image by image, from records.

    python -m benchmarks.differences FOLDER

FOLDER is the ``--out`` of ``softleak reproduce``. The tables hold differences of PSNR in dB with
their standard errors over the images that both columns have, and how many images were not found.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean, stdev

from softleak.paper.experiment import Experiment
from softleak.paper.sweep import Records
from softleak.paper.tables import PSNR, TABLE3, TABLE4, WEIGHT_TITLES

LOST_BELOW = 15.0  # the PSNR in dB below which an image counts as not found
PAIRS = (("ours", "GT"), ("ours", "iDLG"), ("DLG+ours", "GT"))
Qualities = Mapping[tuple[int, int], float]  # by repetition and sample


def rows(experiment: Experiment) -> list[str]:
    """Return the names of cells without the ending of their column, exact inversion left out."""
    ends = [end for end in experiment.across.values() if "exact" not in end]
    cells = (cell.name for cell in experiment.cells)
    return list(dict.fromkeys(c.removesuffix(e) for c in cells for e in ends if c.endswith(e)))


def columns(experiment: Experiment, row: str, records: Records) -> dict[str, Qualities]:
    """Return the PSNR of every image of a row by column, without the columns that were not run."""
    cells = {title: f"{row}{end}" for title, end in experiment.across.items()}
    found = {title: records.of(experiment.name, cell) for title, cell in cells.items()}
    return {
        title: {(r.repeat, r.sample): float(str(r.measures[PSNR])) for r in each}
        for title, each in found.items()
        if each
    }


def gap(held: Mapping[str, Qualities], one: str, other: str) -> str:
    """Return by how many dB one column is above another, as text."""
    both = held.get(one, {}).keys() & held.get(other, {}).keys()
    if len(both) < 2:
        return "–"
    gaps = [held[one][i] - held[other][i] for i in both]
    return f"{mean(gaps):+.2f} ± {stdev(gaps) / len(gaps) ** 0.5:.2f}"


def lost(held: Mapping[str, Qualities], column: str) -> str:
    """Return how many images of a column were not found, as text."""
    found = held.get(column, {})
    return f"{sum(psnr < LOST_BELOW for psnr in found.values())} of {len(found)}" if found else "–"


def table3(records: Records) -> Iterator[str]:
    """Yield the lines of Table 3's differences."""
    yield (
        "| | " + " | ".join(f"{a} − {b}" for a, b in PAIRS) + " | under 15 dB: GT | ours |\n"
        "|---|---|---|---|---|---|"
    )
    for row in rows(TABLE3):
        held = columns(TABLE3, row, records)
        parts = (*(gap(held, *pair) for pair in PAIRS), lost(held, "GT"), lost(held, "ours"))
        yield f"| {row} | " + " | ".join(parts) + " |"


def table4(records: Records) -> Iterator[str]:
    """Yield the lines of Table 4's differences."""
    first, *others = WEIGHT_TITLES
    yield f"| against {first} | " + " | ".join(others) + " |\n|---|---|---|---|---|"
    for row in rows(TABLE4):
        held = columns(TABLE4, row, records)
        yield f"| {row} | " + " | ".join(gap(held, other, first) for other in others) + " |"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where `softleak reproduce` keeps its records")
    with Records(parser.parse_args().folder) as records:
        print("\n".join([*table3(records), "", *table4(records)]))


if __name__ == "__main__":
    main()
