"""Measure how often images are proved by Gauss–Newton on the share, network by network.

    python -m benchmarks.gauss_newton [--images 20] [--only "16×16 residual"] [--seconds 600]

Labels and features are recovered from the share, not given; behind noise the label is given where
only its class is known. No start is given, but for the cells "from 20 dB", which begin at the true
image with noise of that size added; a walk that gets stuck begins there again, more cautiously.
Every image counts. The PSNR is that of pixels of range one.
"honest" counts proved images whose true error is within a factor 3 of the predicted one. "wrong"
counts proved images whose true error is more than 10 times the predicted one. Each image of a batch
is compared with the errors predicted for its own pixels. All times are processor seconds, those of
a batch are divided by its size, and the memory is the largest of the whole process.
"""

from __future__ import annotations

import argparse
import math
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from statistics import median

import torch
from rich.console import Console
from torch import Tensor, nn

import softleak as sl
from benchmarks.smooth_networks import build, images
from softleak.matching import GaussNewton, GivenLabel, Image, Noise, Reconstruction, Watch
from softleak.matching.reconstruction import MatchProgress

COLUMNS = (
    "cell", "images", "≥100 dB", "≥80 dB", "proved", "median dB", "honest", "wrong", "steps", "s",
)  # fmt: skip
WIDTHS = (44, 6, 7, 6, 6, 9, 6, 5, 5, 6)
PIXEL = 0.25  # what one unit of a normalised input is worth in pixels, roughly CIFAR-10's spread
RESTARTS = 3
PLAIN = (
    "residual 6, no BatchNorm, SiLU", "residual 6, no BatchNorm, GELU",
    "residual 8, no BatchNorm, SiLU", "residual 8, no BatchNorm, GELU",
    "residual 12, no BatchNorm, SiLU", "residual 12, no BatchNorm, GELU",
)  # fmt: skip
ALONE = (
    *PLAIN,
    "residual 8, SiLU", "residual 8, GELU", "residual 12, SiLU", "residual 12, GELU",
    "ConvNeXt-like", "MLP-Mixer", "Swin-like", "LeNet, sigmoid", "residual 8, ReLU",
)  # fmt: skip
LARGE = (
    *PLAIN[:2],
    "residual 6, no BatchNorm, tanh",
    "residual 8, SiLU",
    "residual 8, GELU",
    "ConvNeXt-like",
    "MLP-Mixer",
    "LeNet, sigmoid",
)
SWITCHING = ("ResNet-8, ReLU", "ResNet-8, GroupNorm, ReLU", "CNN, max-pooling, ReLU")


@dataclass(frozen=True)
class NewtonCell:
    """One row: a network, the size of images, of batches, of noise, and where the search begins."""

    kind: str
    size: int = 16
    batch: int = 1
    noise: float = 0.0
    start: float | None = None
    chosen: bool = False  # whether ``reconstruct`` chooses the way, with no option given

    @property
    def title(self) -> str:
        """Return the row's name."""
        parts = [f"{self.size}×{self.size} {self.kind}"]
        parts += [f"batch of {self.batch}"] if self.batch > 1 else []
        parts += [f"noise {self.noise:g}"] if self.noise else []
        parts += [f"from {self.start:g} dB"] if self.start else []
        parts += ["by default"] if self.chosen else []
        return ", ".join(parts)


class ProcessorLimit(Watch):
    """It ends a run after so many processor seconds, however crowded the machine is."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.end = time.process_time() + seconds

    def tell(self, progress: MatchProgress) -> None:
        if time.process_time() > self.end:
            self.stop()


@dataclass(frozen=True)
class NewtonScore:
    """How one image compares with the truth, which is read after the answer."""

    psnr: float
    predicted: float
    proved: bool
    steps: int
    seconds: float

    @property
    def ratio(self) -> float:
        """Return the true error divided by the predicted one."""
        return float(10 ** ((self.predicted - self.psnr) / 20))


def cells() -> Iterator[NewtonCell]:
    """Yield every cell, the first ones first in importance."""
    yield from (NewtonCell(kind) for kind in ALONE)
    yield from (NewtonCell(kind, batch=2) for kind in ALONE[:2])
    yield from (NewtonCell(ALONE[0], batch=size) for size in (4, 8))
    for kind in (ALONE[0], "LeNet, sigmoid"):
        yield from (NewtonCell(kind, noise=noise) for noise in (1e-5, 1e-4, 1e-3))
    yield from (NewtonCell(kind, 32, start=20.0) for kind in LARGE)
    yield from (NewtonCell(kind, 32) for kind in LARGE)
    yield from (NewtonCell(kind, 16, chosen=True) for kind in ALONE[:10])
    for size in (8, 16):
        yield from (NewtonCell(kind, size, start=20.0) for kind in SWITCHING)
        yield from (NewtonCell(kind, size, chosen=True) for kind in SWITCHING)


def measure(
    cell: NewtonCell, count: int, seconds: float, first: int = 0, seed: int = 0
) -> Iterator[NewtonScore]:
    """Yield a score for each of so many images, or batches of images, from the first on."""
    model = build(cell.kind, cell.size, seed)
    x, y = images((first + count) * cell.batch, cell.size, 3)
    for number in range(first, first + count):
        rows = slice(number * cell.batch, (number + 1) * cell.batch)
        began = time.process_time()
        found = attack(model, cell, x[rows], y[rows], ProcessorLimit(seconds))
        took = time.process_time() - began
        yield from scores(found, x[rows].double(), took / cell.batch)


def attack(
    model: nn.Module, cell: NewtonCell, x: Tensor, y: Tensor, limit: Watch
) -> Reconstruction:
    """Return what Gauss–Newton finds of the share of inputs (B, …) with labels (B, C)."""
    single = cell.batch == 1
    share = sl.capture(model, x[0], y[0]) if single else sl.capture(model, x, y)
    generator = torch.Generator().manual_seed(int(1e6 * float(x.mean().abs())))
    if cell.noise:
        share = share.map(
            lambda _, g: g + cell.noise * torch.randn(g.shape, generator=generator)
        ).expecting(cell.noise)
    start = Noise() if cell.start is None else Image(_spoiled(x[0], cell.start, generator))
    restarts = RESTARTS if cell.start is None else 1
    method = GaussNewton()
    if not single:
        batch = sl.recover_batch(model, share, size=cell.batch)
        return sl.reconstruct(model, share, batch, optimiser=method, restarts=restarts, watch=limit)
    recovery = sl.recover_label(model, share)
    if cell.chosen:
        return sl.reconstruct(model, share, recovery, watch=limit)
    if recovery.label is None:  # behind noise only the class may be known
        return sl.reconstruct(
            model, share, optimiser=method, label=GivenLabel(y[0]), start=start, watch=limit
        )
    return sl.reconstruct(
        model, share, recovery, optimiser=method, start=start, restarts=restarts, watch=limit
    )


def _spoiled(x: Tensor, quality: float, generator: torch.Generator) -> Tensor:
    """Return an image with smooth noise that leaves a PSNR of ``quality`` dB."""
    noise = torch.randn(x.shape, generator=generator)
    noise = nn.functional.avg_pool2d(noise[None], 3, 1, 1)[0]
    return x + noise / noise.square().mean().sqrt() * 10 ** (-quality / 20) / PIXEL


def scores(found: Reconstruction, truth: Tensor, seconds: float) -> list[NewtonScore]:
    """Compare the answer with the truth (B, …), in the best order of the batch."""
    if found.input is None:
        return [NewtonScore(0.0, -math.inf, False, 0, seconds) for _ in truth]
    inputs = found.input.double().reshape(truth.shape)
    error = found.error

    def quality(order: tuple[int, ...]) -> list[float]:
        return _decibels(inputs[list(order)] - truth)

    best = max(permutations(range(len(truth))), key=lambda order: sum(quality(order)))
    told = [-math.inf] * len(truth)
    if error is not None:
        told = _decibels(error.reshape(truth.shape)[list(best)])
    return [
        NewtonScore(*both, found.proved, found.evaluations, seconds)
        for both in zip(quality(best), told, strict=True)
    ]


def _decibels(error: Tensor) -> list[float]:
    """Return the PSNR of each image of a batch, from errors (B, …) in units of the input."""
    squares = (error.double() * PIXEL).square().flatten(1).mean(1)
    return [-10 * math.log10(float(one) + 1e-300) for one in squares]


def row(title: str, found: Sequence[NewtonScore]) -> str:
    """Return the line of one cell."""
    proved = [score for score in found if score.proved]
    parts = (
        title, str(len(found)), str(sum(s.psnr >= 100 for s in found)),
        str(sum(s.psnr >= 80 for s in found)), str(len(proved)),
        f"{median(s.psnr for s in found):.1f}",
        str(sum(1 / 3 <= s.ratio <= 3 for s in proved)), str(sum(s.ratio > 10 for s in proved)),
        f"{median(s.steps for s in found):.0f}", f"{median(s.seconds for s in found):.0f}",
    )  # fmt: skip
    return line(parts)


def line(parts: Sequence[str]) -> str:
    """Return one line of the table."""
    return "  ".join(part.ljust(width) for part, width in zip(parts, WIDTHS, strict=True))


def main() -> None:
    """Measure every cell and print the table, row by row."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=20, help="images, or batches, per cell")
    parser.add_argument("--seconds", type=float, default=600.0, help="limit of each image or batch")
    parser.add_argument("--only", default="", help="run cells whose title contains this")
    parser.add_argument("--cell", default="", help="run the one cell with this title")
    parser.add_argument("--first", type=int, default=0, help="number of the first image")
    parser.add_argument("--seed", type=int, default=0, help="seed of the network's weights")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds for each cell")
    given = parser.parse_args()
    console = Console(width=140, highlight=False)
    console.print(line(COLUMNS))
    for cell in cells():
        if given.only not in cell.title or given.cell not in ("", cell.title):
            continue
        began, found = time.process_time(), []
        for score in measure(cell, given.images, given.seconds, given.first, given.seed):
            found.append(score)
            console.print(
                f"  {score.psnr:.1f} dB, predicted {score.predicted:.1f}, "
                f"{'proved' if score.proved else 'not proved'}, {score.steps} steps, "
                f"{score.seconds:.1f} s"
            )
            if time.process_time() - began > given.budget:
                break
        console.print(row(cell.title, found))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    console.print(f"{most:.2f} GiB at most")


if __name__ == "__main__":
    main()
