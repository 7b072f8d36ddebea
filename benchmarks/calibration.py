"""Measure whether confidences and intervals under noise hold as often as they say.

python -m benchmarks.calibration [--samples 200] [--evidence]
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

import softleak as sl
from softleak.paper import data
from softleak.paper.networks import NETWORKS, NOISE_SEED, AttackedNetwork, Shelf
from softleak.paper.tables import NOISES

NETWORK = {"kaiming": "resnet18 kaiming", "default": "resnet18"}
LEVELS = (1e-2, 1e-1, 3e-1, 1.0, 2.0)
INTERVAL_SLACK = 1e-6  # the rounding that an interval is forgiven
BINS = (0.0, 0.3, 0.5, 0.7, 0.85, 0.95, 0.99, 1.01)


@dataclass(frozen=True)
class Claim:
    """What was claimed of one share, and whether it is true.

    Attributes:
        level: the standard deviation of the noise.
        confidence: the probability that was given to the class.
        right: whether the class is the true one.
        covered: the fraction of the true label's entries that are in their intervals.
        bounded: whether the label's L1 error is within the bound that came with it.
    """

    level: float
    confidence: float
    right: bool
    covered: float
    bounded: bool


def claim(level: float, recovery: sl.Recovery, y_true: torch.Tensor) -> Claim | None:
    """Return what a recovery claims beside the truth; None if it claims nothing."""
    if recovery.label is None or recovery.interval is None or recovery.confidence is None:
        return None
    index = int(y_true.argmax())
    low, high = recovery.interval
    covered = ((low - INTERVAL_SLACK <= y_true) & (y_true <= high + INTERVAL_SLACK)).double().mean()
    error = float((recovery.label - y_true).abs().sum())
    return Claim(
        level, recovery.confidence, recovery.class_index == index,
        float(covered), error <= recovery.error,
    )  # fmt: skip


def report(claims: Sequence[Claim], statuses: Counter[sl.Status]) -> None:
    """Print the tables by confidence and by level of noise."""
    print("| confidence | shares | mean confidence | class right |\n|---|---|---|---|")
    for low, high in pairwise(BINS):
        some = [c for c in claims if low <= c.confidence < high]
        if some:
            mean = sum(c.confidence for c in some) / len(some)
            right = sum(c.right for c in some) / len(some)
            print(f"| {low:.2f} to {min(high, 1):.2f} | {len(some)} | {mean:.3f} | {right:.3f} |")
    print(
        "\n| std | shares | mean confidence | class right | entries in their 90 % intervals "
        "| labels within `error` (90 %) |"
    )
    print("|---|---|---|---|---|---|")
    for level in (*sorted({c.level for c in claims}), None):
        some = [c for c in claims if level is None or c.level == level]
        means = [
            sum(values) / len(some)
            for values in zip(
                *((c.confidence, c.right, c.covered, c.bounded) for c in some), strict=True
            )
        ]
        cells = " | ".join(f"{mean:.3f}" for mean in means)
        print(f"| {'all' if level is None else f'{level:.0e}'} | {len(some)} | {cells} |")
    counts = ", ".join(f"{count} {status.name}" for status, count in statuses.most_common())
    print(f"\nOf all shares: {counts}; without a confidence: {statuses.total() - len(claims)}")


def main() -> None:
    """Attack shares with noise of every level, and print how the claims hold."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=200, help="samples per level")
    parser.add_argument("--init", choices=["kaiming", "default"], default="kaiming")
    parser.add_argument("--noise", choices=list(NOISES), default="Gaussian")
    parser.add_argument("--levels", type=float, nargs="+", default=LEVELS)
    parser.add_argument("--evidence", action="store_true")
    given = parser.parse_args()
    target = AttackedNetwork.of(NETWORKS[NETWORK[given.init]], Shelf())
    drawn = [target.sample(data.Smoothing(), number) for number in range(given.samples)]
    shares = [target.share(sample) for sample in drawn]
    claims, statuses = list[Claim](), Counter[sl.Status]()
    for level in given.levels:
        noise = NOISES[given.noise](level, torch.Generator().manual_seed(NOISE_SEED))
        found = sl.recover_labels(
            target.model, [noise(share) for share in shares], family=sl.Smoothed(),
            head=target.head, evidence=target.relations if given.evidence else False,
        )  # fmt: skip
        statuses.update(recovery.status for recovery in found)
        said = (claim(level, r, sample.y) for r, sample in zip(found, drawn, strict=True))
        claims += [one for one in said if one is not None]
    report(claims, statuses)


if __name__ == "__main__":
    main()
