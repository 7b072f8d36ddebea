"""Draw a reproducible stream of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from softleak.core.errors import DataError
from softleak.core.input_spec import Normalisation
from softleak.paper.data.load import ImageSet, resize


@dataclass(frozen=True, eq=False)
class Sample:
    """A network input x (C, H, W) and its soft label y (classes,)."""

    x: Tensor
    y: Tensor


def one_hot(label: int, classes: int) -> Tensor:
    """Return the label (classes,) float64 that is 1 at `label`."""
    return smooth(label, classes, 0.0)


def smooth(label: int, classes: int, epsilon: float) -> Tensor:
    """Return the label (classes,) float64 with 1 - ε + ε/C at `label` and ε/C elsewhere."""
    if not 0 <= label < classes:
        raise DataError(f"label must lie in 0 to {classes - 1} for {classes} classes, got {label}.")
    check_share("epsilon", epsilon)
    y = torch.full((classes,), epsilon / classes, dtype=torch.float64)
    y[label] = 1 - epsilon + epsilon / classes
    return y


def mixup(x1: Tensor, y1: Tensor, x2: Tensor, y2: Tensor, weight: float) -> Sample:
    """Return (1 - weight) of the first image and label plus `weight` of the second."""
    check_share("weight", weight)
    if x1.shape != x2.shape or y1.shape != y2.shape:
        raise DataError(
            f"Expected two samples of one shape, got images {tuple(x1.shape)} and "
            f"{tuple(x2.shape)}, labels {tuple(y1.shape)} and {tuple(y2.shape)}."
        )
    return Sample((1 - weight) * x1 + weight * x2, (1 - weight) * y1 + weight * y2)


def check_share(name: str, value: float) -> None:
    """Raise unless value lies in [0, 1]."""
    if not 0.0 <= value <= 1.0:
        raise DataError(f"{name} must lie in [0, 1], got {value}.")


# Makes the sample of an image by its index in the set.
Augmentation = Callable[[ImageSet, Normalisation, int, torch.Generator], Sample]


class _Labelled:
    """An augmentation that leaves the image as it is."""

    def label(self, images: ImageSet, index: int, generator: torch.Generator) -> Tensor:
        """Return the label (classes,) of image `index`."""
        raise NotImplementedError

    def __call__(
        self, images: ImageSet, norm: Normalisation, index: int, generator: torch.Generator
    ) -> Sample:
        return Sample(norm.apply(images.pixels(index)), self.label(images, index, generator))


@dataclass(frozen=True)
class Hard(_Labelled):
    """Give the image its one-hot label; nothing is drawn."""

    def label(self, images: ImageSet, index: int, _: torch.Generator) -> Tensor:
        return one_hot(int(images.labels[index]), images.classes)


@dataclass(frozen=True)
class Smoothing(_Labelled):
    """Give the image a smoothed label, with ε ~ U(low, high)."""

    low: float = 0.0
    high: float = 0.5

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)

    def label(self, images: ImageSet, index: int, generator: torch.Generator) -> Tensor:
        epsilon = _uniform(self.low, self.high, generator)
        return smooth(int(images.labels[index]), images.classes, epsilon)


@dataclass(frozen=True)
class Dirichlet(_Labelled):
    """Give the image any soft label at all, drawn from Dir(alpha, ..., alpha)."""

    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.alpha < float("inf"):
            raise DataError(f"alpha must be positive and finite, got {self.alpha}.")

    def label(self, images: ImageSet, _: int, generator: torch.Generator) -> Tensor:
        # torch draws from no Dirichlet with a generator, so NumPy does, from a seed torch draws.
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        y = np.random.default_rng(seed).dirichlet([self.alpha] * images.classes)
        return torch.from_numpy(y)


@dataclass(frozen=True)
class Mixup:
    """Mix in an image of another class, with λ ~ U(low, high)."""

    low: float = 0.0
    high: float = 1.0
    epsilon: float = 0.0  # by which both labels are smoothed

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)
        check_share("epsilon", self.epsilon)

    def __call__(
        self, images: ImageSet, norm: Normalisation, index: int, generator: torch.Generator
    ) -> Sample:
        """Return the sample made from image `index` (1 - λ) and its partner (λ)."""
        partner = _partner(images, index, generator)
        weight = _uniform(self.low, self.high, generator)
        x1, x2 = (norm.apply(images.pixels(i)) for i in (index, partner))
        y1, y2 = (
            smooth(int(images.labels[i]), images.classes, self.epsilon) for i in (index, partner)
        )
        return mixup(x1, y1, x2, y2, weight)


@dataclass(frozen=True)
class SmoothedMixup(Mixup):
    """Mix in an image of another class, of labels that are smoothed by a tenth."""

    epsilon: float = 0.1


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


def samples(
    images: ImageSet, augmentation: Augmentation, count: int, seed: int,
    normalisation: Normalisation, size: int | None = None,
) -> Iterator[Sample]:  # fmt: skip
    """Yield samples of images drawn at random; sample i depends on (seed, i) alone.

    Each x is resized to (C, size, size), if ``size`` is given. Mixing, normalising and resizing are
    affine and commute, so it is done once, at the end.
    """
    for number in range(count):
        yield nth_sample(images, augmentation, number, seed, normalisation, size)


def nth_sample(
    images: ImageSet, augmentation: Augmentation, number: int, seed: int,
    normalisation: Normalisation, size: int | None = None,
) -> Sample:  # fmt: skip
    """Return sample `number` of a stream, without computing those before it."""
    generator = numbered_generator(seed, number)
    index = int(torch.randint(len(images), (), generator=generator))
    sample = augmentation(images, normalisation, index, generator)
    return sample if size is None else Sample(resize(sample.x[None], size)[0], sample.y)


def numbered_generator(seed: int, number: int) -> torch.Generator:
    """Return the generator that sample `number` is drawn with."""
    if seed < 0:
        raise DataError(f"seed must be 0 or more, got {seed}.")
    mixed = np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(mixed) >> 1)
