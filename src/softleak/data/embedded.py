"""This module loads the sample of CIFAR-10 in the package (see files/CREDITS.md)."""

from __future__ import annotations

from importlib import resources

from softleak.data.imageset import ImageSet
from softleak.data.pack import load_pack


def embedded() -> ImageSet:
    """Return 200 CIFAR-10 test images, 20 of each class."""
    file = resources.files("softleak.data").joinpath("files", "cifar10_sample200.npz")
    with resources.as_file(file) as path:
        return load_pack(path)
