"""This module reads every kind of data set; the path tells which kind it is."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from softleak.data.cifar import is_cifar_folder, load_cifar
from softleak.data.cifar_files import first_bytes
from softleak.data.cifar_layout import Split
from softleak.data.image_folder import load_folder
from softleak.data.imageset import ImageSet
from softleak.data.pack import load_pack
from softleak.errors import DataError

_ZIP_START = b"PK"


def load(path: str | PathLike[str], split: Split = Split.TEST, size: int | None = None) -> ImageSet:
    """Read an .npz pack, a CIFAR folder, archive or file, or a folder of class folders.

    Args:
        path: the file or folder.
        split: the part of a CIFAR folder or archive.
        size: makes the images square, if given.
    """
    place = Path(path)
    if place.is_dir() and not is_cifar_folder(place):
        return load_folder(place, size)
    if not place.exists():
        raise DataError(f"No data at {place}.")
    is_pack = place.is_file() and first_bytes(place, len(_ZIP_START)) == _ZIP_START
    images = load_pack(place) if is_pack else load_cifar(place, split)
    return images if size is None else images.resized(size)
