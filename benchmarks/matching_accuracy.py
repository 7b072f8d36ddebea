"""Tables 3 and 4: images by gradient matching, one repetition of the paper's protocol.

    python -m benchmarks.matching_accuracy --records matching.jsonl [--data DIR] [--only "Cosine"]

A cell is a line in the records, which a later run continues. PSNR, SSIM and LPIPS of clamped pixels
of range one, every image counted; an image nothing was found for is scored as the mean image.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import mean

import torch
from rich.console import Console
from torch import nn

import softleak as sl
from benchmarks.matching_cells import DRAWS, NETWORKS, Cell, table3, table4
from benchmarks.networks import CIFAR
from softleak import data
from softleak.data import CIFAR10_NORM, ImageSet, Sample
from softleak.matching import LBFGS, Adam, Cosine, Noise, Optimiser, reconstruct
from softleak.metrics import lpips, psnr, ssim

POOR = 15.0  # dB: hardly better than the mean image


@dataclass(frozen=True)
class Record:
    """A cell's images, one entry each."""

    cell: str
    psnr: list[float]
    ssim: list[float]
    lpips: list[float]
    label_error: list[float]
    evaluations: list[int]
    status: list[str]


@dataclass(frozen=True)
class Setup:
    """How cells are run: on which images, with what part of the evaluations, which repetition."""

    images: Path | None
    part: float
    compiled: bool
    seed: int


@cache
def attacked(draw: str, network: str, setup: Setup) -> tuple[
    nn.Module, list[Sample], list[sl.GradientShare], list[sl.Recovery]
]:  # fmt: skip
    """The samples of one repetition, their shares, and what was recovered from them."""
    model = NETWORKS[network][0]()
    drawn = list(DRAWS[draw](_images(setup.images), torch.Generator().manual_seed(setup.seed)))
    shares = [sl.capture(model, sample.x, sample.y) for sample in drawn]
    return model, drawn, shares, list(sl.recover_labels(model, shares))


@cache
def _images(path: Path | None) -> ImageSet:
    return data.load(path) if path else data.embedded()


def measure(cell: Cell, setup: Setup) -> Record:
    """Reconstruct, then score."""
    model, drawn, shares, recoveries = attacked(cell.draw, cell.network, setup)
    way: Optimiser = Adam() if isinstance(cell.objective, Cosine) else LBFGS()
    found = reconstruct(
        model, shares, recoveries, objective=cell.objective, priors=[cell.prior],
        label=[cell.source(sample) for sample in drawn], optimiser=way.part(0.0, setup.part),
        start=Noise(setup.seed), compiled=setup.compiled,
    )  # fmt: skip
    return _scored(cell, drawn, found, _images(setup.images).mean())


def _scored(
    cell: Cell, drawn: Sequence[Sample], found: Sequence[sl.Reconstruction], nothing: torch.Tensor
) -> Record:
    inputs = [nothing if r.input is None else CIFAR10_NORM.invert(r.input) for r in found]
    pairs = [(i, CIFAR10_NORM.invert(s.x)) for i, s in zip(inputs, drawn, strict=True)]
    labels = [
        2.0 if r.label is None else float((r.label - s.y).abs().sum())
        for r, s in zip(found, drawn, strict=True)
    ]
    return Record(
        cell.name,
        [psnr(*pair) for pair in pairs],
        [ssim(*pair) for pair in pairs],
        [lpips(*pair) for pair in pairs],
        labels,
        [r.evaluations for r in found],
        [r.status.name for r in found],
    )


def no_leak(draw: str, setup: Setup) -> float:
    """What the mean image of the data set scores: the answer of somebody who has seen nothing."""
    _, drawn, _, _ = attacked(draw, "untrained", setup)
    nothing = _images(setup.images).mean()
    return mean(psnr(nothing, CIFAR10_NORM.invert(sample.x)) for sample in drawn)


def row(cell: Cell, record: Record) -> str:
    poor = sum(value < POOR for value in record.psnr)
    return (
        f"{cell.name:52} {mean(record.psnr):6.2f} dB (paper {cell.paper:5.2f})  "
        f"SSIM {mean(record.ssim):.3f}  LPIPS {mean(record.lpips):.3f}  "
        f"label {mean(record.label_error):.1e}  under {POOR:.0f} dB {poor}/{len(record.psnr)}  "
        f"evaluations {mean(record.evaluations):.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=Path, required=True, help="a .jsonl to continue")
    parser.add_argument("--data", type=Path, help="a folder of data packs")
    parser.add_argument("--only", nargs="*", default=[], help="cells whose name has all of these")
    parser.add_argument("--part", type=float, default=1.0, help="of the evaluations")
    parser.add_argument("--seed", type=int, default=0, help="of the repetition")
    parser.add_argument("--compiled", action="store_true", help="by torch.compile: twice as fast")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    console = Console(width=200, highlight=False)
    lines = given.records.read_text().splitlines() if given.records.exists() else []
    done = {record.cell: record for record in (Record(**json.loads(entry)) for entry in lines)}
    images = given.data / CIFAR if given.data else None
    setup = Setup(images, given.part, given.compiled, given.seed)
    for cell in {cell.name: cell for cell in (*table3(), *table4())}.values():
        if not all(word in cell.name for word in given.only):
            continue
        if cell.name not in done:
            done[cell.name] = measure(cell, setup)
            with given.records.open("a") as file:
                file.write(json.dumps(asdict(done[cell.name])) + "\n")
        console.print(row(cell, done[cell.name]))
    for draw in DRAWS:
        console.print(
            f"{draw}: the mean image, which no gradient is needed for, has "
            f"{no_leak(draw, setup):.2f} dB"
        )


if __name__ == "__main__":
    main()
