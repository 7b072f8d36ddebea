"""Read .npz packs of labelled images.

A pack has pixels under `x`, differenced planes under `residual`, or photos under `jpeg`. It has
labels under `y` and may have `class_names`; `wnid` marks an ImageNet sample.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from softleak.core.errors import DataError, MissingExtra, how_to_install

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
    """Labelled images."""

    # uint8 (N, H, W, C). Grey images may come as (N, H, W); they are kept as (N, H, W, 1).
    images: Tensor
    labels: Tensor  # int64 (N,)
    class_names: tuple[str, ...]  # the name of each class

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


# A small file may claim to unfold to any size; the claim is checked before it is read.
LARGEST_PACK = 4 * 2**30


def read_npz(path: Path, keys: Collection[str]) -> dict[str, npt.NDArray[Any]]:
    """Return those of the named arrays that the file has."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [m for m in archive.infolist() if m.filename.removesuffix(".npy") in keys]
        size = sum(member.file_size for member in members)
        if size > LARGEST_PACK:
            raise DataError(
                f"{path} unfolds to {size} bytes; at most {LARGEST_PACK} are read at once."
            )
        with np.load(path, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays.files if key in keys}
    except DataError:
        raise
    except Exception as error:  # zipfile, its decompressors and NumPy each raise their own
        raise DataError(f"{path} is not a readable .npz file: {error}") from error


def decode_photo(
    stream: IO[bytes], name: str, formats: tuple[str, ...] | None = None
) -> npt.NDArray[np.uint8]:
    """Return an image file as RGB bytes (H, W, 3), upright; `formats` limits what may come."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise MissingExtra(
            f"Reading compressed images needs Pillow: {how_to_install('images')}."
        ) from error
    try:
        with Image.open(stream, formats=formats) as photo:
            return np.array(ImageOps.exif_transpose(photo).convert("RGB"), dtype=np.uint8)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{name} is not a readable image: {error}") from error


_PACK_KEYS = frozenset({"x", "residual", "jpeg", "offsets", "y", "class_names", "wnid"})
_IMAGENET_CLASSES = 1000
LARGEST_CLASS_COUNT = 1_000_000  # a larger label is damage, and would need a name for each

_Arrays = Mapping[str, npt.NDArray[Any]]


def load_pack(path: str | PathLike[str]) -> ImageSet:
    """Read a pack of labelled images."""
    file = Path(path)
    arrays = read_npz(file, _PACK_KEYS)
    try:
        images = np.ascontiguousarray(_images(arrays))
        labels = _labels(arrays)
        names = _class_names(arrays, labels)
        return ImageSet(torch.from_numpy(images), torch.from_numpy(labels), names)
    except DataError as error:
        raise DataError(f"{file}: {error}") from error


def _images(arrays: _Arrays) -> npt.NDArray[np.uint8]:
    if "x" in arrays:
        return _bytes(arrays, "x", (3, 4))
    if "residual" in arrays:
        return _undo_differences(_bytes(arrays, "residual", (4,)))
    if "jpeg" in arrays and "offsets" in arrays:
        return _photos(_bytes(arrays, "jpeg", (1,)), arrays["offsets"])
    raise DataError("Expected a pack with the key x, residual, or jpeg and offsets.")


def _bytes(arrays: _Arrays, key: str, dims: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    array = arrays[key]
    if array.dtype != np.uint8 or array.ndim not in dims:
        wanted = " or ".join(str(dim) for dim in dims)
        raise DataError(
            f"Expected uint8 of {wanted} dimensions under {key}, got {array.dtype} {array.shape}."
        )
    return array


def _undo_differences(residual: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return (N, H, W, 3) from planes (R-G, G, B-G) differenced along width and height, mod 256."""
    if residual.shape[1] != 3:
        raise DataError(f"Expected residual (N, 3, H, W), got {residual.shape}.")
    planes = residual.cumsum(axis=2, dtype=np.uint8).cumsum(axis=3, dtype=np.uint8)
    green = planes[:, 1]
    return np.stack([planes[:, 0] + green, green, planes[:, 2] + green], axis=-1)


def _photos(jpeg: npt.NDArray[np.uint8], offsets: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return (N, H, W, 3) from photos joined end to end, the i-th between offsets i and i + 1."""
    if offsets.dtype != np.int64 or offsets.ndim != 1 or len(offsets) < 2:
        raise DataError(f"Expected offsets int64 (N + 1,), got {offsets.dtype} {offsets.shape}.")
    if offsets[0] != 0 or offsets[-1] != len(jpeg) or (np.diff(offsets) <= 0).any():
        raise DataError(f"Offsets must rise from 0 to the {len(jpeg)} bytes of jpeg.")
    data = jpeg.tobytes()
    photos = [
        decode_photo(io.BytesIO(data[start:stop]), f"photo {number}", ("JPEG",))
        for number, (start, stop) in enumerate(pairwise(offsets))
    ]
    if len({photo.shape for photo in photos}) > 1:
        raise DataError("The photos of a pack must all have one size.")
    return np.stack(photos)


def _labels(arrays: _Arrays) -> npt.NDArray[np.int64]:
    labels = arrays.get("y")
    if labels is None or labels.dtype.kind not in "iu" or labels.ndim != 1 or not len(labels):
        raise DataError("Expected integer labels (N,) under y.")
    if labels.min() < 0 or labels.max() >= LARGEST_CLASS_COUNT:
        raise DataError(f"Labels run from {labels.min()} to {labels.max()}, expected from 0 on.")
    return labels.astype(np.int64)


def _class_names(arrays: _Arrays, labels: npt.NDArray[np.int64]) -> tuple[str, ...]:
    names = tuple(str(name) for name in arrays.get("class_names", np.array([])).ravel())
    if "wnid" not in arrays and names:
        return names
    # An ImageNet sample names the class of each image, and covers some of the classes only.
    count = _IMAGENET_CLASSES if "wnid" in arrays else int(labels.max()) + 1
    table = [f"class {number}" for number in range(count)]
    for label, name in zip(labels, names, strict=False):
        if label < count:
            table[label] = name
    return tuple(table)
