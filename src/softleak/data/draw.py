"""A reproducible stream of samples."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from softleak.data.augment import Sample
from softleak.data.imageset import ImageSet, resize
from softleak.data.normalisation import Normalisation
from softleak.data.samplers import Augmentation
from softleak.errors import DataError


def samples(
    images: ImageSet,
    augmentation: Augmentation,
    count: int,
    seed: int,
    normalisation: Normalisation,
    size: int | None = None,
) -> Iterator[Sample]:
    """`count` samples of images drawn at random; sample i depends on (seed, i) alone.

    With `size`, each x is resized to (C, size, size). Mixing, normalising and resizing are
    affine and commute, so it is done once, at the end.
    """
    for number in range(count):
        generator = _generator(seed, number)
        index = int(torch.randint(len(images), (), generator=generator))
        sample = augmentation(images, normalisation, index, generator)
        if size is not None:
            sample = Sample(resize(sample.x.unsqueeze(0), size).squeeze(0), sample.y)
        yield sample


def _generator(seed: int, number: int) -> torch.Generator:
    if seed < 0:
        raise DataError(f"seed must be 0 or more, got {seed}.")
    mixed = np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(mixed) >> 1)
