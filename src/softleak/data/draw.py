"""This module draws a reproducible stream of samples."""

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
    """Yield samples of images drawn at random; sample i depends on (seed, i) alone.

    Args:
        images: the data set.
        augmentation: how an image becomes a sample, such as ``Mixup()``.
        count: the number of samples.
        seed: chooses the stream.
        normalisation: how pixels become inputs.
        size: each x is resized to (C, size, size), if given. Mixing, normalising and resizing are
            affine and commute, so it is done once, at the end.
    """
    for number in range(count):
        yield nth_sample(images, augmentation, number, seed, normalisation, size)


def nth_sample(
    images: ImageSet,
    augmentation: Augmentation,
    number: int,
    seed: int,
    normalisation: Normalisation,
    size: int | None = None,
) -> Sample:
    """Return sample `number` of a stream, without computing those before it."""
    generator = numbered_generator(seed, number)
    index = int(torch.randint(len(images), (), generator=generator))
    sample = augmentation(images, normalisation, index, generator)
    return sample if size is None else resized(sample, size)


def resized(sample: Sample, size: int) -> Sample:
    """Return the sample with x (C, H, W) resized to (C, size, size)."""
    return Sample(resize(sample.x.unsqueeze(0), size).squeeze(0), sample.y)


def numbered_generator(seed: int, number: int) -> torch.Generator:
    """Return the generator that sample `number` is drawn with."""
    if seed < 0:
        raise DataError(f"seed must be 0 or more, got {seed}.")
    mixed = np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(mixed) >> 1)
