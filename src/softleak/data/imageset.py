"""This module holds labelled images as they came, in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from softleak.errors import DataError

# Resizing goes through float32, so a whole set at once would need several times its size.
_RESIZED_AT_ONCE = 256


def resize(x: Tensor, size: int) -> Tensor:
    """Resize float images (N, C, H, W) to (N, C, size, size): bilinear, antialiased, no crop."""
    if size < 1:
        raise DataError(f"size must be 1 or more, got {size}.")
    return functional.interpolate(
        x, size=(size, size), mode="bilinear", align_corners=False, antialias=True
    )


def resize_bytes(images: Tensor, size: int) -> Tensor:
    """Resize uint8 images (N, H, W, C) to (N, size, size, C)."""
    x = resize(images.permute(0, 3, 1, 2).float(), size)
    return x.round().clamp(0, 255).byte().permute(0, 2, 3, 1).contiguous()


@dataclass(frozen=True, eq=False)
class ImageSet:
    """This holds labelled images.

    Attributes:
        images: uint8 (N, H, W, C). Grey images may come as (N, H, W); they are kept as (N, H, W,
            1).
        labels: int64 (N,).
        class_names: the name of each class.
    """

    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.images.dim() == 3:
            object.__setattr__(self, "images", self.images.unsqueeze(-1))
        _check_images(self.images)
        _check_labels(self.labels, len(self.images), len(self.class_names))

    def __len__(self) -> int:
        return len(self.images)

    @property
    def classes(self) -> int:
        """Return the number of classes."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the shape (C, H, W) of one image."""
        _, height, width, channels = self.images.shape
        return channels, height, width

    def pixels(self, index: int) -> Tensor:
        """Return image `index` as float32 (C, H, W) in [0, 1]."""
        if not -len(self) <= index < len(self):
            raise DataError(f"Image {index} asked for, but the set has {len(self)}.")
        return self.images[index].permute(2, 0, 1).float() / 255

    def mean(self) -> Tensor:
        """Return the mean image (C, H, W) in [0, 1], the best guess without any gradient."""
        return self.images.float().mean(0).permute(2, 0, 1) / 255

    def resized(self, size: int) -> ImageSet:
        """Return the same set with images of size x size, not cropped."""
        images = torch.cat(
            [resize_bytes(part, size) for part in torch.split(self.images, _RESIZED_AT_ONCE)]
        )
        return ImageSet(images, self.labels, self.class_names)

    def subset(self, indices: Sequence[int] | Tensor) -> ImageSet:
        """Return the images at `indices`, in that order, with the same classes."""
        chosen = torch.as_tensor(indices, dtype=torch.int64, device=self.labels.device)
        if bool(((chosen < -len(self)) | (chosen >= len(self))).any()):
            raise DataError(f"Subset indices must lie within the set's {len(self)} images.")
        return ImageSet(self.images[chosen], self.labels[chosen], self.class_names)


def _check_images(images: Tensor) -> None:
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[3] not in (1, 3):
        raise DataError(
            "Expected images as uint8 (N, H, W, 3), or (N, H, W) for grey, "
            f"got {images.dtype} {tuple(images.shape)}."
        )
    if 0 in images.shape:
        raise DataError(f"The set holds no pixels: images have shape {tuple(images.shape)}.")


def _check_labels(labels: Tensor, count: int, classes: int) -> None:
    if labels.dtype != torch.int64 or labels.shape != (count,):
        raise DataError(
            f"Expected labels as int64 ({count},), one for each image, "
            f"got {labels.dtype} {tuple(labels.shape)}."
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise DataError(f"Labels run from {low} to {high}, but there are {classes} class names.")
