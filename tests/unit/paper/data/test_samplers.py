from __future__ import annotations

from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softleak.core.errors import DataError
from softleak.paper.data import (
    CIFAR10_NORM,
    Augmentation,
    Dirichlet,
    Hard,
    Mixup,
    Sample,
    Smoothing,
    embedded,
    samples,
)

IMAGES = embedded()
ALL: list[Augmentation] = [Hard(), Smoothing(), Mixup(), Mixup(epsilon=0.1), Dirichlet()]
SEEDS = st.integers(0, 2**40)


def draw(augmentation: Augmentation, index: int, seed: int) -> Sample:
    generator = torch.Generator().manual_seed(seed)
    return augmentation(IMAGES, CIFAR10_NORM, index, generator)


@given(st.sampled_from(ALL), st.integers(0, 199), SEEDS)
def test_every_sample_is_an_input_and_a_distribution(
    augmentation: Augmentation, index: int, seed: int
) -> None:
    sample = draw(augmentation, index, seed)
    assert sample.x.shape == (3, 32, 32)
    assert sample.y.shape == (10,)
    assert sample.x.dtype == torch.float32
    assert sample.y.dtype == torch.float64
    assert sample.y.min() >= 0
    assert sample.y.double().sum().item() == pytest.approx(1, abs=1e-6)
    pixels = CIFAR10_NORM.invert(sample.x)
    assert pixels.min() > -1e-5
    assert pixels.max() < 1 + 1e-5


@given(st.integers(0, 199), SEEDS)
def test_hard_and_smooth_keep_the_image(index: int, seed: int) -> None:
    x = CIFAR10_NORM.apply(IMAGES.pixels(index))
    label = int(IMAGES.labels[index])
    for augmentation in (Hard(), Smoothing(0.2, 0.3), Dirichlet()):
        assert torch.equal(draw(augmentation, index, seed).x, x)
    assert draw(Hard(), index, seed).y[label] == 1
    y = draw(Smoothing(0.2, 0.3), index, seed).y
    assert 0.02 - 1e-7 <= y.min() <= 0.03 + 1e-7
    assert y.argmax() == label


@given(st.integers(0, 199), SEEDS)
def test_mixup_is_of_two_classes(index: int, seed: int) -> None:
    sample = draw(Mixup(0.2, 0.4), index, seed)
    label = int(IMAGES.labels[index])
    assert (sample.y > 0).sum() == 2
    assert 0.6 - 1e-6 <= sample.y[label] <= 0.8 + 1e-6
    smoothed = draw(Mixup(0.2, 0.4, epsilon=0.1), index, seed)
    assert torch.equal(smoothed.x, sample.x)
    torch.testing.assert_close(smoothed.y, 0.9 * sample.y + 0.01)


def test_mixup_needs_two_classes() -> None:
    one = IMAGES.subset((IMAGES.labels == 3).nonzero().flatten())
    with pytest.raises(DataError, match="two classes"):
        Mixup()(one, CIFAR10_NORM, 0, torch.Generator())


def test_dirichlet_concentrates_with_alpha() -> None:
    def spread(alpha: float) -> float:
        return sum(draw(Dirichlet(alpha), 0, seed).y.max().item() for seed in range(50)) / 50

    assert spread(0.05) > 0.8 > spread(1.0) > 0.15 > spread(1000.0)


@pytest.mark.parametrize("augmentation", ALL)
def test_a_sample_depends_on_the_seed_and_its_number_alone(augmentation: Augmentation) -> None:
    short = list(samples(IMAGES, augmentation, 3, 7, CIFAR10_NORM))
    long = list(islice(samples(IMAGES, augmentation, 10**9, 7, CIFAR10_NORM), 3))
    other = list(samples(IMAGES, augmentation, 3, 8, CIFAR10_NORM))
    for a, b, c in zip(short, long, other, strict=True):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.y, b.y)
        assert not torch.equal(a.x, c.x)


def test_the_global_generator_is_not_touched() -> None:
    before = torch.random.get_rng_state()
    for augmentation in ALL:
        list(samples(IMAGES, augmentation, 2, 0, CIFAR10_NORM))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_resized_samples_are_samples_of_resized_images() -> None:
    small = samples(IMAGES, Mixup(), 3, 0, CIFAR10_NORM, size=48)
    large = samples(IMAGES.resized(48), Mixup(), 3, 0, CIFAR10_NORM)
    for a, b in zip(small, large, strict=True):
        assert a.x.shape == (3, 48, 48)
        # Half a grey level, by rounding to bytes, over the smallest std.
        assert (a.x - b.x).abs().max() < 0.51 / 255 / 0.2435
        assert torch.equal(a.y, b.y)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Smoothing(-0.1, 0.5),
        lambda: Smoothing(0.5, 0.4),
        lambda: Mixup(0.0, 1.1),
        lambda: Mixup(epsilon=2.0),
        lambda: Dirichlet(0.0),
        lambda: Dirichlet(float("nan")),
        lambda: next(samples(IMAGES, Hard(), 1, -1, CIFAR10_NORM)),
    ],
)
def test_impossible_options(build: object) -> None:
    with pytest.raises(DataError):
        build()  # type: ignore[operator]
