"""Run the matrix from the command line; see the package."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path

import torch

from benchmarks.matrix.networks import NETWORKS
from benchmarks.matrix.run import Cell, cells
from benchmarks.matrix.table import page
from benchmarks.matrix.updates import KINDS


def main() -> None:
    """Audit every network with every kind of update, and print the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.matrix")
    parser.add_argument("--only", help="run networks whose name or group contains this")
    parser.add_argument("--out", type=Path, help="the Markdown file to write")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    rows = [(i, n) for i, n in enumerate(NETWORKS) if (given.only or "") in f"{n.group}: {n.name}"]
    began = time.process_time()
    found: list[Cell] = []
    for row, network in rows:
        mine = list(cells(network, KINDS, row))
        found += mine
        print(f"{network.name}: {time.process_time() - began:.0f} s", file=sys.stderr, flush=True)
        for cell in mine:
            if cell.faults:
                print(f"  {cell.kind}: {', '.join(cell.faults)}: {cell.said}", file=sys.stderr)
    text = page(found, time.process_time() - began)
    if given.out is not None:
        given.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
