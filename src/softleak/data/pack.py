"""This module reads .npz packs of labelled images.

A pack has pixels under `x`, differenced planes under `residual`, or photos under `jpeg`. It has
labels under `y` and may have `class_names`; `wnid` marks an ImageNet sample.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from softleak.data.imageset import ImageSet
from softleak.data.npz import read_npz
from softleak.data.photo import decode_photo
from softleak.errors import DataError

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
