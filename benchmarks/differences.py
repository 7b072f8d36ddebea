"""Tables 3 and 4 image by image: how much better one column is than another, from records.

    python -m benchmarks.differences FOLDER

FOLDER is the ``--out`` of ``softleak reproduce``. Differences of PSNR in dB with their standard
errors, over the images both columns have, and how many images were not found.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean, stdev

from softleak.experiments.experiment import Experiment
from softleak.experiments.images import PSNR
from softleak.experiments.table3 import TABLE3
from softleak.experiments.table4 import TABLE4, WEIGHTS
from softleak.sweep import Records

LOST = 15.0  # dB: an image below was not found
PAIRS = (("ours", "GT"), ("ours", "iDLG"), ("DLG+ours", "GT"))
Qualities = Mapping[tuple[int, int], float]  # by repetition and sample


def rows(experiment: Experiment) -> list[str]:
    """What cells are called but for the column they are in, exact inversion aside."""
    ends = [end for end in experiment.across.values() if "exact" not in end]
    cells = (cell.name for cell in experiment.cells)
    return list(dict.fromkeys(c.removesuffix(e) for c in cells for e in ends if c.endswith(e)))


def columns(experiment: Experiment, row: str, records: Records) -> dict[str, Qualities]:
    """The PSNR of every image of a row, by column; what was not run is not there."""
    cells = {title: f"{row}{end}" for title, end in experiment.across.items()}
    found = {title: records.of(experiment.name, cell) for title, cell in cells.items()}
    return {
        title: {(r.repeat, r.sample): float(str(r.measures[PSNR])) for r in each}
        for title, each in found.items()
        if each
    }


def gap(held: Mapping[str, Qualities], one: str, other: str) -> str:
    """By how much one column is above another."""
    both = held.get(one, {}).keys() & held.get(other, {}).keys()
    if len(both) < 2:
        return "–"
    gaps = [held[one][i] - held[other][i] for i in both]
    return f"{mean(gaps):+.2f} ± {stdev(gaps) / len(gaps) ** 0.5:.2f}"


def lost(held: Mapping[str, Qualities], column: str) -> str:
    found = held.get(column, {})
    return f"{sum(psnr < LOST for psnr in found.values())} of {len(found)}" if found else "–"


def table3(records: Records) -> Iterator[str]:
    yield (
        "| | " + " | ".join(f"{a} − {b}" for a, b in PAIRS) + " | under 15 dB: GT | ours |\n"
        "|---|---|---|---|---|---|"
    )
    for row in rows(TABLE3):
        held = columns(TABLE3, row, records)
        parts = (*(gap(held, *pair) for pair in PAIRS), lost(held, "GT"), lost(held, "ours"))
        yield f"| {row} | " + " | ".join(parts) + " |"


def table4(records: Records) -> Iterator[str]:
    first, *others = (f"α={a:g} β={b:g}" for a, b in WEIGHTS)
    yield f"| against {first} | " + " | ".join(others) + " |\n|---|---|---|---|---|"
    for row in rows(TABLE4):
        held = columns(TABLE4, row, records)
        yield f"| {row} | " + " | ".join(gap(held, other, first) for other in others) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where `softleak reproduce` keeps its records")
    with Records(parser.parse_args().folder) as records:
        print("\n".join([*table3(records), "", *table4(records)]))


if __name__ == "__main__":
    main()
