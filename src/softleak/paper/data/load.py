"""Read every kind of data set; the path tells which kind it is."""

from __future__ import annotations

from importlib import resources
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from softleak.core.errors import DataError
from softleak.paper.data.cifar import Split, first_bytes, is_cifar_folder, load_cifar
from softleak.paper.data.imageset import ImageSet, decode_photo, load_pack, resize_bytes

_SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})


def load_folder(path: str | PathLike[str], size: int | None = None) -> ImageSet:
    """Read every image of every subfolder, in name order.

    Args:
        path: the folder with one subfolder per class.
        size: makes all images square, if given; without it they must have one size.
    """
    root = Path(path)
    if not root.is_dir():
        raise DataError(f"No folder at {root}.")
    classes = sorted(child for child in root.iterdir() if child.is_dir() and image_files(child))
    if not classes:
        raise DataError(
            f"{root} has no subfolder with images. Expected one subfolder for each class, "
            f"with files ending in {', '.join(sorted(_SUFFIXES))}."
        )
    files = [(file, label) for label, c in enumerate(classes) for file in image_files(c)]
    images = _stack([_read(file, size) for file, _ in files], root)
    labels = torch.tensor([label for _, label in files])
    return ImageSet(images, labels, tuple(folder.name for folder in classes))


def image_files(folder: Path) -> list[Path]:
    """Return the image files directly in a folder, in name order."""
    found = folder.iterdir()
    return sorted(f for f in found if f.suffix.lower() in _SUFFIXES and f.is_file())


def _read(file: Path, size: int | None) -> Tensor:
    with file.open("rb") as stream:
        image = torch.from_numpy(decode_photo(stream, str(file)))
    return image if size is None else resize_bytes(image.unsqueeze(0), size).squeeze(0)


def _stack(images: list[Tensor], root: Path) -> Tensor:
    shapes = {tuple(image.shape) for image in images}
    if len(shapes) > 1:
        sizes = ", ".join(f"{height}x{width}" for height, width, _ in sorted(shapes)[:3])
        raise DataError(f"The images in {root} differ in size ({sizes}, ...): give a size.")
    return torch.stack(images)


def embedded() -> ImageSet:
    """Return 200 CIFAR-10 test images, 20 of each class."""
    file = resources.files("softleak.paper.data").joinpath("files", "cifar10_sample200.npz")
    with resources.as_file(file) as path:
        return load_pack(path)


def verses() -> tuple[str, ...]:
    """Return 715 verses of the King James Bible, which is in the public domain."""
    file = resources.files("softleak.paper.data").joinpath("files", "verses.txt")
    return tuple(file.read_text("ascii").splitlines())


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
