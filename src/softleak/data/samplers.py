"""This module draws training samples: what a client may have computed its gradient on.

A sampler is a frozen set of options. It is called with a data set, a normalisation, an image and a
generator, and returns a Sample whose x is float32 and normalised and whose y is float64. Rounded to
float32 too early, a label would not sum to one in a float64 model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from softleak.data.augment import Sample, check_share, mixup, one_hot, smooth
from softleak.data.imageset import ImageSet
from softleak.data.normalisation import Normalisation
from softleak.errors import DataError


class Augmentation(Protocol):
    """This is what every sampler here is."""

    def __call__(
        self, images: ImageSet, norm: Normalisation, index: int, generator: torch.Generator
    ) -> Sample:
        """Return the sample made from image `index`."""
        ...


@dataclass(frozen=True)
class Hard:
    """This gives the image its one-hot label."""

    def __call__(
        self, images: ImageSet, norm: Normalisation, index: int, generator: torch.Generator
    ) -> Sample:
        """Return the sample made from image `index`; nothing is drawn."""
        return _sample(_input(images, norm, index), one_hot(_label(images, index), images.classes))


@dataclass(frozen=True)
class Smoothing:
    """This gives the image a smoothed label, with ε ~ U(low, high)."""

    low: float = 0.0
    high: float = 0.5

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)

    def __call__(
        self, images: ImageSet, norm: Normalisation, index: int, generator: torch.Generator
    ) -> Sample:
        """Return the sample made from image `index`."""
        epsilon = _uniform(self.low, self.high, generator)
        y = smooth(_label(images, index), images.classes, epsilon)
        return _sample(_input(images, norm, index), y)


@dataclass(frozen=True)
class SmoothedMixup:
    """This mixes in an image of another class, λ ~ U(low, high), of labels smoothed by epsilon."""

    low: float = 0.0
    high: float = 1.0
    epsilon: float = 0.1

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)
        check_share("epsilon", self.epsilon)

    def __call__(
        self, images: ImageSet, norm: Normalisation, index: int, generator: torch.Generator
    ) -> Sample:
        """Return the sample made from image `index` (1 - λ) and its partner (λ)."""
        partner = _partner(images, index, generator)
        weight = _uniform(self.low, self.high, generator)
        x1, x2 = (_input(images, norm, i) for i in (index, partner))
        y1, y2 = (smooth(_label(images, i), images.classes, self.epsilon) for i in (index, partner))
        mixed = mixup(x1, y1, x2, y2, weight)
        return _sample(mixed.x, mixed.y)


@dataclass(frozen=True)
class Mixup:
    """This mixes in an image of another class, with λ ~ U(low, high)."""

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)

    def __call__(
        self, images: ImageSet, norm: Normalisation, index: int, generator: torch.Generator
    ) -> Sample:
        """Return the sample made from image `index` (1 - λ) and its partner (λ)."""
        return SmoothedMixup(self.low, self.high, 0.0)(images, norm, index, generator)


@dataclass(frozen=True)
class Dirichlet:
    """This gives the image any soft label at all, drawn from Dir(alpha, ..., alpha)."""

    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.alpha < float("inf"):
            raise DataError(f"alpha must be positive and finite, got {self.alpha}.")

    def __call__(
        self, images: ImageSet, norm: Normalisation, index: int, generator: torch.Generator
    ) -> Sample:
        """Return the sample made from image `index`; its class plays no part in the label."""
        # torch draws from no Dirichlet with a generator, so NumPy does, from a seed torch draws.
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        y = np.random.default_rng(seed).dirichlet([self.alpha] * images.classes)
        return _sample(_input(images, norm, index), torch.from_numpy(y))


def _sample(x: Tensor, y: Tensor) -> Sample:
    return Sample(x.float(), y.to(x.device, torch.float64))


def _input(images: ImageSet, norm: Normalisation, index: int) -> Tensor:
    return norm.apply(images.pixels(index))


def _label(images: ImageSet, index: int) -> int:
    return int(images.labels[index])


def _partner(images: ImageSet, index: int, generator: torch.Generator) -> int:
    others = (images.labels != images.labels[index]).nonzero().flatten()
    if not len(others):
        raise DataError("Mixup needs images of at least two classes, but the set has one.")
    choice = torch.randint(len(others), (), generator=generator, device=generator.device)
    return int(others[int(choice)])


def _uniform(low: float, high: float, generator: torch.Generator) -> float:
    draw = torch.rand((), generator=generator, device=generator.device, dtype=torch.float64)
    return low + (high - low) * float(draw)


def _check_range(low: float, high: float) -> None:
    check_share("low", low)
    check_share("high", high)
    if low > high:
        raise DataError(f"low must not exceed high, got {low} and {high}.")
