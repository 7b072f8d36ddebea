"""Measure what can still be read of a share made by Opacus's DP-SGD, by its ε.

    python -m benchmarks.privacy docs [--samples 40] [--images 8]

The network is untrained and has two hidden layers; images are the embedded ones, with smoothed
labels. Each share holds one sample, clipped to norm one, and is released once at δ = 1e-5. The
attacker knows neither the noise nor by how much the share was clipped.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

import softleak as sl
from softleak.audit.metrics import label_error, psnr
from softleak.defenses.dpsgd import DPSGD
from softleak.paper import data, models
from softleak.paper.data import CIFAR10_NORM

MULTIPLIERS = (1e-5, 1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
NORM = 1.0
SHAPE = (3, 32, 32)


@dataclass(frozen=True)
class Reading:
    """What was read at one ε.

    Attributes:
        multiplier: the noise multiplier of DP-SGD.
        epsilon: the ε of one release.
        right: the fraction of classes that are right.
        sure: the fraction of labels that were called PROBABLE or UNIQUE.
        error: the median L1 error of the labels.
        psnr: the mean PSNR of the images in dB.
    """

    multiplier: float
    epsilon: float
    right: float
    sure: float
    error: float
    psnr: float


def image_of(model: nn.Module, share: sl.GradientShare, found: sl.Recovery) -> Tensor:
    """Return the inverted image (3, 32, 32), or grey if there is nothing to invert."""
    if found.feature is None:
        return torch.full(SHAPE, 0.5, dtype=torch.double)
    inverted = sl.invert(model, share, found).input.view(SHAPE)
    return CIFAR10_NORM.invert(inverted).nan_to_num(0.5)


def read(multiplier: float, samples: Sequence[data.Sample], images: int) -> Reading:
    """Attack shares with this noise multiplier, and score the answers."""
    torch.manual_seed(0)
    model = models.mlp(3 * 32 * 32, (512, 256)).eval()
    client = DPSGD(multiplier, NORM, torch.Generator().manual_seed(0))
    shares = [client.capture(model, s.x[None], s.y[None]) for s in samples]
    found = sl.recover_labels(model, shares, family=sl.Smoothed(), scale="unknown")
    right = [r.class_index == int(s.y.argmax()) for r, s in zip(found, samples, strict=True)]
    sure = [r.status in (sl.Status.PROBABLE, sl.Status.UNIQUE) for r in found]
    errors = [label_error(r, s.y) for r, s in zip(found, samples, strict=True)]
    scores = [
        psnr(image_of(model, share, r), CIFAR10_NORM.invert(s.x.double()))
        for share, r, s in list(zip(shares, found, samples, strict=True))[:images]
    ]
    return Reading(
        multiplier, client.epsilon(), statistics.fmean(right), statistics.fmean(sure),
        statistics.median(errors), statistics.fmean(scores),
    )  # fmt: skip


def draw(readings: Sequence[Reading], path: Path) -> None:
    """Draw what was read against ε."""
    figure, panels = plt.subplots(1, 3, figsize=(12, 3.4), layout="constrained")
    epsilons = [r.epsilon for r in readings]

    def panel(axes: Axes, title: str, values: Sequence[float]) -> None:
        axes.plot(epsilons, values, "o-")
        axes.set(xscale="log", xlabel="ε (one release, δ = 1e-5)", title=title)
        axes.grid(alpha=0.3)

    panel(panels[0], "class right", [r.right for r in readings])
    panels[0].axhline(0.1, linestyle=":", color="grey")
    panel(panels[1], "median L1 error of the label", [r.error for r in readings])
    panels[1].set_yscale("log")
    panel(panels[2], "mean PSNR of the image, dB", [r.psnr for r in readings])
    figure.savefig(path / "privacy.png", dpi=110)


def main() -> None:
    """Print the table and draw the figure."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--images", type=int, default=8)
    given = parser.parse_args()
    drawn = data.samples(data.embedded(), data.Smoothing(), given.samples, 0, CIFAR10_NORM)
    samples = list(drawn)
    print("| noise multiplier | ε | class right | called PROBABLE | median L1 | image |")
    print("|---|---|---|---|---|---|")
    readings = []
    for multiplier in MULTIPLIERS:
        r = read(multiplier, samples, given.images)
        readings.append(r)
        figures = f"{100 * r.right:.0f} % | {100 * r.sure:.0f} % | {r.error:.1e} | {r.psnr:.1f} dB"
        print(f"| {r.multiplier:.0e} | {r.epsilon:.3g} | {figures} |", flush=True)
    draw(readings, given.folder)


if __name__ == "__main__":
    main()
