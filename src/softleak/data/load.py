"""One door to every kind of data set: the kind is told from what is at the path."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from softleak.data.cifar import is_cifar_folder, load_cifar
from softleak.data.cifar_files import first_bytes
from softleak.data.cifar_layout import Split
from softleak.data.folder import load_folder
from softleak.data.imageset import ImageSet
from softleak.data.pack import load_pack
from softleak.errors import DataError

_ZIP = b"PK"


def load(path: str | PathLike[str], split: Split = Split.TEST, size: int | None = None) -> ImageSet:
    """Read an .npz pack, a CIFAR folder, archive or file, or a folder of class folders.

    `split` chooses the part of a CIFAR folder or archive; `size` makes the images square.
    """
    place = Path(path)
    if place.is_dir() and not is_cifar_folder(place):
        return load_folder(place, size)
    if not place.exists():
        raise DataError(f"No data at {place}.")
    is_pack = place.is_file() and first_bytes(place, len(_ZIP)) == _ZIP
    images = load_pack(place) if is_pack else load_cifar(place, split)
    return images if size is None else images.resized(size)
