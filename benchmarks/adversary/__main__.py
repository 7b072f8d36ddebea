"""The command: see the package."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path

import torch

from benchmarks.adversary.findings import findings
from benchmarks.adversary.judge import FAILURES
from benchmarks.adversary.run import Record, run
from benchmarks.adversary.table import page
from benchmarks.adversary.zoo import ZOO


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adversary")
    parser.add_argument("--recoveries", type=int, default=15000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="models whose name or group contains this")
    parser.add_argument("--out", type=Path, help="a Markdown file for the tables")
    parser.add_argument("--findings", type=Path, help="a Markdown file for what failed")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    zoo = [s for s in ZOO if given.only is None or given.only in f"{s.group}: {s.name}"]
    began = time.process_time()
    records: list[Record] = []
    for number, found in enumerate(run(zoo, given.recoveries, given.seed), 1):
        records += found
        failed = sum(one.outcome in FAILURES for one in found)
        spent = time.process_time() - began
        line = (
            f"{number}/{len(zoo)} {found[0].stranger}: {len(found)}, {failed} failed, {spent:.0f} s"
        )
        print(line, file=sys.stderr, flush=True)
    command = f"python -m benchmarks.adversary --recoveries {given.recoveries} --seed {given.seed}"
    text = page(records, command, len(zoo), (time.process_time() - began) / 60)
    print(text)
    if given.out is not None:
        given.out.write_text(text)
    if given.findings is not None:
        given.findings.write_text(findings(records, given.seed))


if __name__ == "__main__":
    main()
