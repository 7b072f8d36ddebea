"""This module reads image folders: one subfolder per class, named after it."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from softleak.data.imageset import ImageSet, resize_bytes
from softleak.data.photo import decode_photo
from softleak.errors import DataError

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
    images: list[Tensor] = []
    labels: list[int] = []
    for label, folder in enumerate(classes):
        for file in image_files(folder):
            images.append(_read(file, size))
            labels.append(label)
    return ImageSet(_stack(images, root), torch.tensor(labels), tuple(c.name for c in classes))


def image_files(folder: Path) -> list[Path]:
    """Return the image files directly in a folder, in name order."""
    files = (file for file in folder.iterdir() if file.suffix.lower() in _SUFFIXES)
    return sorted(file for file in files if file.is_file())


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
