"""Run the matrix from the command line; see the package."""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from benchmarks.matrix.networks import NETWORKS
from benchmarks.matrix.run import Cell, cells
from benchmarks.matrix.table import page
from benchmarks.matrix.updates import KINDS

WRITTEN = Path(__file__).parents[2] / "docs" / "matrix.md"


def main() -> None:
    """Audit every network with every kind of update, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.matrix")
    parser.add_argument("--only", default="", help="run models whose name contains this")
    parser.add_argument("--kind", default="", help="run kinds of update whose name contains this")
    parser.add_argument("--jobs", type=int, default=1, help="the number of processes")
    parser.add_argument("--out", type=Path, help=f"the file to write (all of it: {WRITTEN.name})")
    parser.add_argument("--cells", type=Path, help="a file to write the cells to, as JSON")
    parser.add_argument("--again", type=Path, help="such a file, to write the page again from it")
    given = parser.parse_args()
    rows = [row for row, network in enumerate(NETWORKS) if given.only in network.name]
    run = partial(_column, kind=given.kind)
    found, seconds = _kept(given.again) if given.again else ([], 0.0)
    rows = [] if given.again else rows
    with ProcessPoolExecutor(given.jobs) as pool:
        for mine, took in pool.map(run, rows) if given.jobs > 1 else map(run, rows):
            found, seconds = found + mine, seconds + took
            _tell(mine, took)
    if given.cells is not None:
        held = {"seconds": seconds, "cells": [asdict(cell) for cell in found]}
        given.cells.write_text(json.dumps(held, indent=1))
    text = page(found, seconds, given.jobs)
    whole = not given.only and not given.kind
    path = given.out or (WRITTEN if whole else None)
    if path is None:
        print(text)
    else:
        path.write_text(text)


def _kept(path: Path) -> tuple[list[Cell], float]:
    """Return the cells that another run wrote, and the processor time they took."""
    held = json.loads(path.read_text())
    tuples = (
        {name: tuple(value) if isinstance(value, list) else value for name, value in cell.items()}
        for cell in held["cells"]
    )
    return [Cell(**cast(Any, cell)) for cell in tuples], held["seconds"]


def _column(row: int, kind: str) -> tuple[list[Cell], float]:
    """Return the cells of one model, and the processor time they took."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    began = time.process_time()
    kinds = [one for one in KINDS if kind in one.name]
    found = list(cells(NETWORKS[row], kinds, row))
    return found, time.process_time() - began


def _tell(column: list[Cell], took: float) -> None:
    """Say on standard error what came of one model."""
    for cell in column:
        faults = "; ".join((*cell.wrong, *cell.green, *cell.tiles, *cell.missed))
        states = "".join(state[:3].lower() + " " for state in cell.states)
        told = f"{cell.network} | {cell.kind} | {cell.word} | {cell.code} | {states}| {faults}"
        print(f"{told} | {cell.said} | {cell.seconds:.1f} s", file=sys.stderr)
    print(f"{column[0].network if column else ''}: {took:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
