"""Data packs and trained weights: where the files are, which are missing, and what they hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from torch import Tensor

from softleak import data, tensor_files
from softleak.data import ImageSet
from softleak.errors import DataError, ModelError
from softleak.tensor_files import fingerprint


@dataclass(frozen=True)
class DataSet:
    """This is a data set of the paper.

    Attributes:
        file: the name of its data pack.
        title: the name of the data set in messages.
        images: the number of images that the paper has.
    """

    file: str
    title: str
    images: int

    @property
    def embedded(self) -> bool:
        """Whether some of its images come with the package."""
        return self == CIFAR10


CIFAR10 = DataSet("cifar10_test.npz", "CIFAR-10's test set", 10_000)
CIFAR100 = DataSet("cifar100_test.npz", "CIFAR-100's test set", 10_000)
FLOWERS17 = DataSet("flowers17_224.npz", "Flowers-17", 1360)
IMAGENET = DataSet("imagenet_sample500_224.npz", "ImageNet's validation set", 50_000)

_hash = cache(fingerprint)  # files are assumed not to change during a run


@dataclass(frozen=True)
class Shelf:
    """Folders of data packs and of trained weights, either of which may be missing.

    What was opened travels with the shelf, so that a worker on another machine needs no folders.

    Attributes:
        data: the folder of data packs.
        weights: the folder of trained weights.
        opened: the images that were read, by file.
        read: the weights that were read, by file.
    """

    data: Path | None = None
    weights: Path | None = None
    opened: dict[str, ImageSet] = field(default_factory=dict, compare=False)
    read: dict[str, Mapping[str, Tensor]] = field(default_factory=dict, compare=False)

    def images(self, source: DataSet) -> ImageSet:
        """Return the images of a data set.

        The embedded images stand in for CIFAR-10. ``DataError`` is raised if another pack is
        missing.
        """
        if source.file not in self.opened:
            path = self.path(source.file)
            if path is None and not source.embedded:
                raise DataError(
                    f"the data pack {source.file} is in no folder given; give one by --data"
                )
            self.opened[source.file] = data.load(path) if path else data.embedded()
        return self.opened[source.file]

    def tensors(self, name: str) -> Mapping[str, Tensor]:
        """Return the weights in a file on the shelf, or raise ``ModelError`` if it is missing."""
        if name not in self.read:
            path = self.path(name)
            if path is None:
                raise ModelError(
                    f"the weights {name} are in no folder given; give one by --data or --weights"
                )
            self.read[name] = tensor_files.load(path).tensors
        return self.read[name]

    def path(self, name: str | None) -> Path | None:
        """Return where a file is, or None if it is not on the shelf."""
        folders = [folder for folder in (self.data, self.weights) if folder is not None]
        found = [folder / name for folder in folders if name and (folder / name).is_file()]
        return found[0] if found else None

    def lacks(self, source: DataSet, weights: str = "") -> str:
        """Return the files that are needed and missing; empty if all are on the shelf.

        Args:
            source: the data set that is needed.
            weights: the file of weights that is needed, if any.
        """
        needed = [weights] if weights else []
        needed += [] if source.embedded else [source.file]
        return ", ".join(name for name in needed if self.path(name) is None)

    def hashes(self, names: Iterable[str]) -> dict[str, str]:
        """Return the SHA-256 of each file, or "embedded" if it comes with the package."""
        paths = {name: self.path(name) for name in names if name}
        return {name: _hash(path) if path else "embedded" for name, path in paths.items()}

    def shortfall(self, source: DataSet) -> str:
        """Return by how much the images are fewer than the paper's; empty if they are not."""
        held = len(self.images(source))
        if held >= source.images:
            return ""
        return f"{held} images of the {source.images} of {source.title}"
