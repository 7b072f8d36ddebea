"""Time the audit of a folder of 1000 LeNet updates, labels only, against reading the files.

    python -m benchmarks.folder

Times are processor time, as in all benchmarks.
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
from softleak.audit import Options
from softleak.audit.run import UpdateFiles, share_files
from softleak.core.subject import Subject
from softleak.paper import data, models

KINDS: tuple[data.Augmentation, ...] = (
    data.Hard(),
    data.Smoothing(),
    data.Mixup(),
    data.Dirichlet(),
)
IMPORT = "from softleak.cli import app"
TIMED_RUNS = 3  # the fastest of these counts


def fill(folder: Path, shares: int) -> None:
    """Write updates of the embedded images, as many of each kind of label."""
    model = models.trained_lenet()
    for kind, augmentation in enumerate(KINDS):
        drawn = data.samples(
            data.embedded(), augmentation, shares // len(KINDS), kind, data.CIFAR10_NORM
        )
        for index, sample in enumerate(drawn):
            sl.capture(model, sample.x, sample.y).save(folder / f"{kind}-{index:04}.safetensors")


def best(work: Callable[[], object]) -> float:
    """Return the processor seconds of the fastest run, with those of its child processes."""
    took = []
    for _ in range(TIMED_RUNS):
        start = sum(os.times()[:4])
        work()
        took.append(sum(os.times()[:4]) - start)
    return min(took)


def by_function(paths: list[Path]) -> None:
    """Audit the files from Python, with the preparation of the model."""
    subject = Subject.of(models.trained_lenet(), (3, 32, 32))
    list(UpdateFiles(paths=paths).audited(subject, Options(inputs=False)))


def run(code: str, *arguments: str) -> None:
    """Run code in a Python process of its own."""
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True)


def main() -> None:
    """Print how long each way takes, as a multiple of reading the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shares", type=int, default=1000, help="the number of updates")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder, out = Path(made) / "shares", Path(made) / "out"
        folder.mkdir()
        fill(folder, given.shares)
        paths = share_files(folder)
        command = (
            "audit", "--model", "softleak.paper.models:trained_lenet", "--share", str(folder),
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
