"""This module reads CIFAR-10 and CIFAR-100 as distributed: a folder, an archive or a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

import numpy as np
import torch

from softleak.data.cifar_batch import CifarBatch
from softleak.data.cifar_binary import decode_binary
from softleak.data.cifar_files import is_archive, read_archive, read_file, read_folder
from softleak.data.cifar_layout import CIFAR10_NAMES, LAYOUTS, Layout, Split
from softleak.data.cifar_python import decode_python
from softleak.data.imageset import ImageSet
from softleak.errors import DataError

# Every pickle of protocol 2 or later begins so, and no label byte is as large.
_PICKLE_START = b"\x80"


def load_cifar(path: str | PathLike[str], split: Split = Split.TEST) -> ImageSet:
    """Read one split of CIFAR.

    Args:
        path: a folder, a tar archive, or a single file, which is read whatever the split.
        split: the part that is read.
    """
    place = Path(path)
    if place.is_dir():
        return _assemble(read_folder(_home(place), _wanted(split)), split, place)
    if not place.is_file():
        raise DataError(f"No CIFAR folder, archive or file at {place}.")
    if is_archive(place):
        return _assemble(read_archive(place, _wanted(split)), split, place)
    data = read_file(place)
    batch = decode_python(data) if data[:1] == _PICKLE_START else decode_binary(data)
    return _join([batch], _names(read_folder(place.parent, _name_files())))


def is_cifar_folder(place: Path) -> bool:
    """Return whether a folder, or one of an official name in it, holds CIFAR files."""
    home = _home(place)
    names = (name for layout in LAYOUTS for part in layout.files.values() for name in part)
    return any((home / name).is_file() for name in names)


def _home(place: Path) -> Path:
    inside = (place / layout.folder for layout in LAYOUTS)
    return next((folder for folder in inside if folder.is_dir()), place)


def _name_files() -> set[str]:
    return {layout.names.file for layout in LAYOUTS if layout.names}


def _wanted(split: Split) -> set[str]:
    return _name_files().union(*(layout.files[split] for layout in LAYOUTS))


def _assemble(found: Mapping[str, bytes], split: Split, place: Path) -> ImageSet:
    layout = _layout(found, split, place)
    missing = [name for name in layout.files[split] if name not in found]
    if missing:
        raise DataError(f"{place} lacks {', '.join(missing)} of {layout.folder}.")
    return _join([layout.decode(found[name]) for name in layout.files[split]], _names(found))


def _layout(found: Mapping[str, bytes], split: Split, place: Path) -> Layout:
    for layout in LAYOUTS:
        if any(name in found for name in layout.files[split]):
            return layout
    expected = ", ".join(layout.files[split][0] for layout in LAYOUTS)
    raise DataError(f"{place} has no CIFAR {split.value} files; expected one of {expected}.")


def _names(found: Mapping[str, bytes]) -> tuple[str, ...]:
    """Return CIFAR-100's class names, or numbered ones where no file gives them."""
    for layout in LAYOUTS:
        if layout.names and layout.names.file in found:
            return layout.names.decode(found[layout.names.file])
    return tuple(f"class {number}" for number in range(100))


def _join(batches: Sequence[CifarBatch], fine_names: tuple[str, ...]) -> ImageSet:
    if len({batch.fine for batch in batches}) > 1:
        raise DataError("CIFAR-10 and CIFAR-100 files are mixed in one folder.")
    images = np.ascontiguousarray(np.concatenate([batch.images for batch in batches]))
    labels = np.concatenate([batch.labels for batch in batches])
    names = fine_names if batches[0].fine else CIFAR10_NAMES
    return ImageSet(torch.from_numpy(images), torch.from_numpy(labels), names)
