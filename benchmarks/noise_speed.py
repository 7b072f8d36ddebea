"""Measure the processor time of a label behind noise, by the size of the noise and the scale.

python -m benchmarks.noise_speed [--classes 100] [--repeats 1]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator

import torch

import softleak as sl
from softleak.core.share import Scale
from softleak.defenses import GaussianNoise
from softleak.paper import models

STDS = (1e-3, 1e-2, 1e-1, 0.5)
SCALES: tuple[Scale, ...] = ("known", "unknown")


def labels(classes: int) -> dict[str, torch.Tensor]:
    """Return a smoothed label and a mixed one."""
    smoothed = torch.full((classes,), 0.1 / classes)
    smoothed[3] += 0.9
    mixed = torch.zeros(classes)
    mixed[3], mixed[5] = 0.7, 0.3
    return {"smoothed": smoothed, "mixed": mixed}


def timed(classes: int, std: float, scale: Scale, repeats: int) -> Iterator[tuple[str, float, str]]:
    """Yield the kind of label, the median time in seconds, and the statuses."""
    for kind, y in labels(classes).items():
        seconds, seen = [], set()
        for seed in range(repeats):
            torch.manual_seed(seed)
            model = models.lenet(classes=classes).eval()
            share = GaussianNoise(std, seed)(sl.capture(model, torch.randn(3, 32, 32), y))
            began = time.process_time()
            seen.add(sl.recover_label(model, share, scale=scale).status.name)
            seconds.append(time.process_time() - began)
        yield kind, statistics.median(seconds), ", ".join(sorted(seen))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=1)
    given = parser.parse_args()
    list(timed(10, 1e-2, "known", 1))  # a first label loads what the others need
    print("| noise | scale | label | seconds | status |\n|---|---|---|---|---|")
    for std in STDS:
        for scale in SCALES:
            for kind, seconds, status in timed(given.classes, std, scale, given.repeats):
                print(f"| {std:g} | {scale} | {kind} | {seconds:.2f} | {status} |", flush=True)


if __name__ == "__main__":
    main()
