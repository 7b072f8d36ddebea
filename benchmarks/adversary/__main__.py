"""The command: see the package."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from benchmarks.adversary.findings import findings
from benchmarks.adversary.judge import FAILURES
from benchmarks.adversary.run import Record, run
from benchmarks.adversary.table import page
from benchmarks.adversary.zoo import ZOO


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adversary")
    parser.add_argument("--recoveries", type=int, default=15000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each")
    parser.add_argument("--only", help="models whose name or group contains this")
    parser.add_argument("--out", type=Path, help="a Markdown file for the tables")
    parser.add_argument("--findings", type=Path, help="a Markdown file for what failed")
    given = parser.parse_args()
    zoo = [s.name for s in ZOO if given.only is None or given.only in f"{s.group}: {s.name}"]
    command = f"python -m benchmarks.adversary --recoveries {given.recoveries} --seed {given.seed}"
    if given.only is not None:
        command += f" --only {given.only!r}"
    began = time.perf_counter()
    records: list[Record] = []
    text = ""
    for number, found in enumerate(run(zoo, given.recoveries, given.seed, given.jobs), 1):
        records += found
        spent = time.perf_counter() - began
        failed = sum(one.outcome in FAILURES for one in found)
        done = f"{number}/{len(zoo)} {found[0].stranger}: {len(found)}, {failed} failed"
        print(f"{done}, {spent:.0f} s", file=sys.stderr, flush=True)
        text = page(records, command, number, spent / 60)
        _write(
            given.out, text
        )  # after every model, so that a run that is stopped leaves its counts
        _write(given.findings, findings(records, given.seed))
    print(text)


def _write(path: Path | None, text: str) -> None:
    if path is not None:
        path.write_text(text)


if __name__ == "__main__":
    main()
