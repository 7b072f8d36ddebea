"""Images of vision transformers: PSNR, labels and the predicted error, cell by cell."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

import softleak as sl
from benchmarks.transformers.classifiers import ImageModel, train_images
from softleak.core.knowledge import Knowledge
from softleak.inversion.invert import invert_subject
from softleak.labels.recover import recover
from softleak.paper import data

LABEL_ERROR = 1e-3
LABELS: Mapping[str, data.Augmentation] = {"mixed": data.Mixup(), "Dirichlet": data.Dirichlet()}


@dataclass(frozen=True)
class ImageCell:
    """What was found of the images of one model with one kind of label."""

    model: str
    trained: bool
    labels: str
    psnr: tuple[float, ...]
    exact: int  # labels
    calibrated: int  # images whose predicted error is within a factor of 3
    determined: int
    seconds: float

    @property
    def line(self) -> str:
        """Return a row of the table in docs/transformers.md."""
        count = len(self.psnr)
        return (
            f"| {self.model} | {'a little' if self.trained else 'no'} | {self.labels} "
            f"| {statistics.median(self.psnr):.1f} | {min(self.psnr):.1f} | {self.exact}/{count} "
            f"| {self.calibrated}/{count} | {self.determined}/{count} "
            f"| {1000 * self.seconds:.0f} |"
        )


HEADER = (
    "| model | trained | labels | median dB | worst dB | labels exact | error within 3× "
    "| determined | ms |\n|---|---|---|---|---|---|---|---|---|"
)


def image_cells(
    kind: ImageModel, images: data.ImageSet, count: int, ways: tuple[bool, ...] = (False, True)
) -> Iterator[ImageCell]:
    """Measure a model untrained and trained a little, with mixed and with Dirichlet labels."""
    for trained in ways:
        torch.manual_seed(0)
        model = kind.make(images.classes)
        if trained:
            train_images(model, images, kind.size)
        model.to(kind.dtype).eval()
        for labels in LABELS:
            yield _cell(model, kind, images, (trained, labels), count)


def _cell(
    model: nn.Module, kind: ImageModel, images: data.ImageSet, way: tuple[bool, str], count: int
) -> ImageCell:
    trained, labels = way
    shape = (3, kind.size, kind.size)
    subject = sl.Subject.of(model, shape)
    psnr: list[float] = []
    exact = calibrated = determined = 0
    seconds = 0.0
    size = None if images.images.shape[1] == kind.size else kind.size
    for s in data.samples(images, LABELS[labels], count, 3, data.CIFAR10_NORM, size):
        share = sl.capture(model, s.x, s.y)
        (found,) = recover(subject, [share], Knowledge())
        start = time.perf_counter()
        inv = invert_subject(subject, share, found)
        seconds += (time.perf_counter() - start) / count
        off = (inv.input - s.x.double()).square().mean().sqrt()
        told = inv.error.square().mean().sqrt()
        # Inputs are pixels divided by a standard deviation, whose mean over channels is used.
        pixel = sum(data.CIFAR10_NORM.std) / len(data.CIFAR10_NORM.std)
        psnr.append(-20 * math.log10(float(off) * pixel))
        right = found.label is not None and float((found.label - s.y).abs().sum()) < LABEL_ERROR
        exact += found.status is sl.Status.UNIQUE and right
        calibrated += bool(1 / 3 <= float(told / off) <= 3)
        determined += inv.determined
    return ImageCell(
        kind.name, trained, labels, tuple(psnr), exact, calibrated, determined, seconds
    )
