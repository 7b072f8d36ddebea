"""A folder of 1000 LeNet updates, labels only: the audit against reading the files.

    python -m benchmarks.folder

Processor time, not the clock's, as everywhere here.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import softleak as sl
from softleak import data, models
from softleak.audit import Options, Subject
from softleak.audit.folder import audit_files, share_files

KINDS: tuple[data.Augmentation, ...] = (
    data.Hard(),
    data.Smoothing(),
    data.Mixup(),
    data.Dirichlet(),
)
IMPORT = "from softleak.cli import app"
REPEATS = 3


def fill(folder: Path, shares: int) -> None:
    """As many updates of each kind of label, from the embedded images."""
    model = models.trained_lenet()
    for kind, augmentation in enumerate(KINDS):
        drawn = data.samples(
            data.embedded(), augmentation, shares // len(KINDS), kind, data.CIFAR10_NORM
        )
        for index, sample in enumerate(drawn):
            sl.capture(model, sample.x, sample.y).save(folder / f"{kind}-{index:04}.safetensors")


def best(work: Callable[[], object]) -> float:
    """Processor seconds of the fastest of a few runs, those of processes it started included."""
    took = []
    for _ in range(REPEATS):
        start = sum(os.times()[:4])
        work()
        took.append(sum(os.times()[:4]) - start)
    return min(took)


def by_function(paths: list[Path]) -> None:
    """The audit as Python calls it, the model's preparation included."""
    subject = Subject.of(models.trained_lenet(), (3, 32, 32), inputs=False)
    list(audit_files(subject, paths, Options(inputs=False)))


def run(code: str, *arguments: str) -> None:
    """Python in a process of its own."""
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True)


def main() -> None:
    """Print how long each takes, and how often the files could have been read meanwhile."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shares", type=int, default=1000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder, out = Path(made) / "shares", Path(made) / "out"
        folder.mkdir()
        fill(folder, given.shares)
        paths = share_files(folder)
        command = (
            "audit", "--model", "softleak.models:trained_lenet", "--share", str(folder),
            "--labels-only", "--json", "--out", str(out),
        )  # fmt: skip
        read = best(lambda: [sl.GradientShare.load(path) for path in paths])
        audited = best(lambda: by_function(paths))
        imported = best(lambda: run(IMPORT))
        commanded = best(lambda: run(f"{IMPORT}; app()", *command))
    print(f"reading {len(paths)} files   {read:.2f} s")
    print(f"the audit as a function {audited:.2f} s, {audited / read:.1f}× reading")
    inside = commanded - imported
    print(f"softleak {' '.join(command[:3])} … {commanded:.2f} s, of which import {imported:.2f} s")
    print(f"the command without its import {inside:.2f} s, {inside / read:.1f}× reading")


if __name__ == "__main__":
    main()
