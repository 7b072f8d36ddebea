"""The cells of Tables 3 and 4: what is reconstructed, how, and what the paper reports (PSNR)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import nn

from softleak import models
from softleak.data import CIFAR10_NORM, ImageSet, Sample
from softleak.data.augment import mixup, one_hot, smooth
from softleak.matching import (
    L2,
    Cosine,
    GivenLabel,
    HardLabel,
    LabelSource,
    Objective,
    RandomLabel,
    RecoveredLabel,
    TotalVariation,
)

EACH = 3  # images a class, for smoothing
Draw = Callable[[ImageSet, torch.Generator], Iterator[Sample]]


def smoothed(images: ImageSet, generator: torch.Generator) -> Iterator[Sample]:
    """Three images of every class, ε ~ U(0, 0.5)."""
    for label in range(images.classes):
        for _ in range(EACH):
            epsilon = 0.5 * float(torch.rand((), generator=generator))
            yield Sample(_pick(images, label, generator), smooth(label, images.classes, epsilon))


def mixed(images: ImageSet, generator: torch.Generator) -> Iterator[Sample]:
    """One pair of images for every pair of classes, λ ~ U(0, 1)."""
    for labels in combinations(range(images.classes), 2):
        weight = float(torch.rand((), generator=generator))
        first, second = (
            (_pick(images, label, generator), one_hot(label, images.classes)) for label in labels
        )
        yield mixup(*first, *second, weight)


def _pick(images: ImageSet, label: int, generator: torch.Generator) -> torch.Tensor:
    """A random image of a class, normalised."""
    of_class = (images.labels == label).nonzero()[:, 0]
    index = int(of_class[torch.randint(len(of_class), (), generator=generator)])
    return CIFAR10_NORM.apply(images.pixels(index))


def untrained() -> nn.Module:
    torch.manual_seed(0)
    return models.uniform_(models.lenet())


DRAWS: Mapping[str, Draw] = {"mixup": mixed, "smoothing": smoothed}
NETWORKS: Mapping[str, tuple[Callable[[], nn.Module], float]] = {
    "untrained": (untrained, 1e-2),
    "trained": (models.trained_lenet, 1e-3),
}
SOURCES: Mapping[str, LabelSource | None] = {  # None: the truth, which only the benchmark has
    "GT": None,
    "iDLG": HardLabel(),
    "DLG": RandomLabel(),
    "ours": RecoveredLabel(),
    "DLG+ours": RecoveredLabel(free=True),
}
WEIGHTS = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.0, 2.0), (2.0, 2.0))


@dataclass(frozen=True)
class Cell:
    """One entry of a table."""

    draw: str
    network: str
    objective: Objective
    method: str
    paper: float

    @property
    def name(self) -> str:
        kind = type(self.objective).__name__
        weights = f"α={self.objective.alpha:g} β={self.objective.beta:g}"
        return f"{self.draw} | {self.network} | {kind} {weights} | {self.method}"

    @property
    def prior(self) -> TotalVariation:
        return TotalVariation(NETWORKS[self.network][1])

    def source(self, sample: Sample) -> LabelSource:
        return SOURCES[self.method] or GivenLabel(sample.y)


Kind = type[L2] | type[Cosine]
# PSNR of Table 3: GT, iDLG, DLG, ours, DLG+ours.
TABLE3: Mapping[tuple[str, str, Kind], tuple[float, ...]] = {
    ("mixup", "untrained", L2): (28.27, 10.70, 24.26, 28.24, 27.81),
    ("mixup", "trained", L2): (19.28, 9.34, 16.93, 19.29, 17.30),
    ("mixup", "untrained", Cosine): (25.76, 23.01, 26.45, 25.81, 26.51),
    ("mixup", "trained", Cosine): (24.56, 15.51, 22.71, 24.67, 24.84),
    ("smoothing", "untrained", L2): (21.33, 10.64, 18.98, 20.94, 21.00),
    ("smoothing", "trained", L2): (11.70, 8.72, 11.86, 11.61, 11.47),
    ("smoothing", "untrained", Cosine): (23.13, 22.89, 24.09, 23.06, 24.26),
    ("smoothing", "trained", Cosine): (18.99, 17.40, 18.56, 18.98, 20.42),
}
# Table 4: (α, β) = (1, 0), (0, 1), (1, 1), (0, 2), (2, 2), untrained.
TABLE4: Mapping[tuple[str, Kind], tuple[float, ...]] = {
    ("mixup", L2): (29.04, 34.09, 29.28, 34.18, 29.53),
    ("mixup", Cosine): (25.71, 28.75, 25.89, 28.81, 25.92),
    ("smoothing", L2): (20.49, 24.96, 21.00, 24.65, 20.80),
    ("smoothing", Cosine): (23.02, 25.79, 23.27, 25.85, 23.34),
}


def table3() -> Iterator[Cell]:
    for (draw, network, kind), paper in TABLE3.items():
        for method, value in zip(SOURCES, paper, strict=True):
            yield Cell(draw, network, kind(), method, value)


def table4() -> Iterator[Cell]:
    for (draw, kind), paper in TABLE4.items():
        for (alpha, beta), value in zip(WEIGHTS, paper, strict=True):
            yield Cell(draw, "untrained", kind(alpha, beta), "ours", value)
