from __future__ import annotations

import pytest
import torch
from torch import Tensor

from softleak.core.errors import DataError
from softleak.paper.data import ImageSet


def images(count: int = 4, size: int = 6, channels: int = 3) -> Tensor:
    shape = (count, size, size, channels)
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def make(count: int = 4) -> ImageSet:
    return ImageSet(images(count), torch.arange(count) % 2, ("cat", "dog"))


def test_pixels_are_channels_first_in_the_unit_interval() -> None:
    data = make()
    x = data.pixels(2)
    assert x.shape == data.shape == (3, 6, 6)
    assert x.dtype == torch.float32
    assert torch.equal((x * 255).round().byte(), data.images[2].permute(2, 0, 1))
    assert len(data) == 4
    assert data.classes == 2


def test_grey_images_get_a_channel() -> None:
    grey = ImageSet(images()[..., 0], torch.zeros(4, dtype=torch.int64), ("only",))
    assert grey.images.shape == (4, 6, 6, 1)
    assert grey.pixels(0).shape == (1, 6, 6)


def test_resizing_to_the_same_size_changes_nothing() -> None:
    data = make()
    assert torch.equal(data.resized(6).images, data.images)


def test_resizing_keeps_a_constant_image_and_the_labels() -> None:
    flat = ImageSet(
        torch.full((300, 4, 8, 3), 77, dtype=torch.uint8), torch.arange(300) % 2, ("a", "b")
    )
    for size in (3, 9):
        other = flat.resized(size)
        assert other.images.shape == (300, size, size, 3)
        assert (other.images == 77).all()
        assert torch.equal(other.labels, flat.labels)


def test_subset_keeps_order_and_classes() -> None:
    data = make()
    part = data.subset([3, 0])
    assert torch.equal(part.images, data.images[[3, 0]])
    assert part.labels.tolist() == [1, 0]
    assert part.class_names == data.class_names


@pytest.mark.parametrize("index", [4, -5])
def test_indices_outside_the_set(index: int) -> None:
    with pytest.raises(DataError, match="4"):
        make().pixels(index)
    with pytest.raises(DataError, match="4"):
        make().subset([0, index])


def test_size_must_be_positive() -> None:
    with pytest.raises(DataError, match="size"):
        make().resized(0)


LABELS = torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("pixels", "labels", "said"),
    [
        (images().float(), LABELS, "uint8"),
        (images(channels=2), LABELS, "uint8"),
        (images()[0, 0], LABELS, "uint8"),
        (images()[:0], LABELS[:0], "no pixels"),
        (images(), LABELS[:3], "one for each image"),
        (images(), LABELS.float(), "int64"),
        (images(), LABELS + 1, "1 class names"),
        (images(), LABELS - 1, "from -1"),
    ],
)
def test_misfits_are_refused(pixels: Tensor, labels: Tensor, said: str) -> None:
    with pytest.raises(DataError, match=said):
        ImageSet(pixels, labels, ("only",))
