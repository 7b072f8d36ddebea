"""Images, sentences, labels, and the samples made of them.

A pack (.npz) has pixels under `x`, differenced planes under `residual`, or photos under `jpeg`. It
has labels under `y` and may have `class_names`; `wnid` marks an ImageNet sample.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import resources
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from softleak.core.errors import DataError, import_extra
from softleak.core.input_spec import CIFAR10_NORM, IMAGENET_NORM, Normalisation
from softleak.io.untrusted import check_npz

__all__ = [
    "CIFAR10_NORM", "IMAGENET_NORM", "Augmentation", "Dirichlet", "Hard", "ImageSet", "Mixup",
    "Normalisation", "Sample", "Smoothing", "Split", "embedded", "load",
    "load_cifar", "load_folder", "load_pack", "mixup", "nth_sample", "numbered_generator",
    "one_hot", "samples", "smooth", "verses",
]  # fmt: skip

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


def read_npz(path: Path, keys: Collection[str]) -> dict[str, npt.NDArray[Any]]:
    """Return those of the named arrays that the file has."""
    try:
        check_npz(path)
        with np.load(path, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays.files if key in keys}
    except Exception as error:  # zipfile, its decompressors and NumPy each raise their own
        raise DataError(f"{path} is not a readable .npz file: {error}") from error


def decode_photo(
    stream: IO[bytes], name: str, formats: tuple[str, ...] | None = None
) -> npt.NDArray[np.uint8]:
    """Return an image file as RGB bytes (H, W, 3), upright; `formats` limits what may come."""
    import_extra("PIL", "Reading compressed images needs Pillow", "images")
    from PIL import Image, ImageOps

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


class Split(Enum):
    """The part of a data set that is read."""

    TRAIN = "train"
    TEST = "test"


class CifarFolder(NamedTuple):
    """What the binary version of CIFAR-10 or CIFAR-100 consists of."""

    files: Mapping[Split, tuple[str, ...]]  # the files of each split
    labels: int  # how many bytes before an image are labels; the last one is that of its class
    names: str  # the file with the names of classes


_BATCHES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
CIFAR: Mapping[str, CifarFolder] = {
    "cifar-10-batches-bin": CifarFolder(
        {Split.TRAIN: _BATCHES, Split.TEST: ("test_batch.bin",)}, 1, "batches.meta.txt"
    ),
    "cifar-100-binary": CifarFolder(
        {Split.TRAIN: ("train.bin",), Split.TEST: ("test.bin",)}, 2, "fine_label_names.txt"
    ),
}
CIFAR_PIXELS = 3 * 32 * 32


def load_cifar(path: str | PathLike[str], split: Split = Split.TEST) -> ImageSet:
    """Read one split of CIFAR's binary version: from its folder, or from the one that holds it."""
    place = Path(path)
    found = _cifar_at(place)
    if found is None:
        raise DataError(f"{place} has no CIFAR files; expected those of {' or '.join(CIFAR)}.")
    home, kind = found
    files = [home / name for name in kind.files[split]]
    if lacking := [file.name for file in files if not file.is_file()]:
        raise DataError(f"{place} lacks {', '.join(lacking)} of CIFAR.")
    content = np.concatenate([np.fromfile(file, dtype=np.uint8) for file in files])
    size = kind.labels + CIFAR_PIXELS
    if not len(content) or len(content) % size:
        raise DataError(
            f"Expected records of {size} bytes in {files[0].name}, got {len(content)} bytes in "
            "all: a file is cut short or of another format."
        )
    rows = content.reshape(-1, size)
    images = rows[:, kind.labels :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    labels = rows[:, kind.labels - 1].astype(np.int64)
    given = (home / kind.names).read_text("latin1").split() if (home / kind.names).is_file() else ()
    names = tuple(given) or tuple(f"class {number}" for number in range(10**kind.labels))
    return ImageSet(torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(labels), names)


def _cifar_at(place: Path) -> tuple[Path, CifarFolder] | None:
    """Return the folder of CIFAR's files, and which these are; None if there are none."""
    home = next((place / name for name in CIFAR if (place / name).is_dir()), place)
    for kind in CIFAR.values():
        if any((home / name).is_file() for names in kind.files.values() for name in names):
            return home, kind
    return None


_SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})


def load_folder(path: str | PathLike[str], size: int | None = None) -> ImageSet:
    """Read the images of each class's subfolder in name order, made square if ``size`` is given."""
    root = Path(path)
    if not root.is_dir():
        raise DataError(f"No folder at {root}.")
    classes = sorted(child for child in root.iterdir() if child.is_dir() and image_files(child))
    if not classes:
        raise DataError(
            f"{root} has no subfolder with images. Expected one subfolder for each class, "
            f"with files ending in {', '.join(sorted(_SUFFIXES))}, or CIFAR's binary version."
        )
    files = [(file, label) for label, c in enumerate(classes) for file in image_files(c)]
    images = [_read(file, size) for file, _ in files]
    if len(shapes := {tuple(image.shape) for image in images}) > 1:
        sizes = ", ".join(f"{height}x{width}" for height, width, _ in sorted(shapes)[:3])
        raise DataError(f"The images in {root} differ in size ({sizes}, ...): give a size.")
    labels = torch.tensor([label for _, label in files])
    return ImageSet(torch.stack(images), labels, tuple(folder.name for folder in classes))


def image_files(folder: Path) -> list[Path]:
    """Return the image files directly in a folder, in name order."""
    found = folder.iterdir()
    return sorted(f for f in found if f.suffix.lower() in _SUFFIXES and f.is_file())


def _read(file: Path, size: int | None) -> Tensor:
    with file.open("rb") as stream:
        image = torch.from_numpy(decode_photo(stream, str(file)))
    return image if size is None else resize_bytes(image.unsqueeze(0), size).squeeze(0)


FILES = resources.files("softleak.paper").joinpath("files")


def embedded() -> ImageSet:
    """Return 200 CIFAR-10 test images, 20 of each class."""
    with resources.as_file(FILES.joinpath("cifar10_sample200.npz")) as path:
        return load_pack(path)


def verses() -> tuple[str, ...]:
    """Return 715 verses of the King James Bible, which is in the public domain."""
    return tuple(FILES.joinpath("verses.txt").read_text("ascii").splitlines())


def load(path: str | PathLike[str], split: Split = Split.TEST, size: int | None = None) -> ImageSet:
    """Read an .npz pack, a part of CIFAR's folder, or a folder of class folders, made square."""
    place = Path(path)
    if not place.exists():
        raise DataError(f"No data at {place}.")
    if place.is_dir() and _cifar_at(place) is None:
        return load_folder(place, size)
    images = load_cifar(place, split) if place.is_dir() else load_pack(place)
    return images if size is None else images.resized(size)


@dataclass(frozen=True, eq=False)
class Sample:
    """A network input x (C, H, W) and its soft label y (classes,)."""

    x: Tensor
    y: Tensor


def one_hot(label: int, classes: int) -> Tensor:
    """Return the label (classes,) float64 that is 1 at `label`."""
    return smooth(label, classes, 0.0)


def smooth(label: int, classes: int, epsilon: float) -> Tensor:
    """Return the label (classes,) float64 with 1 - ε + ε/C at `label` and ε/C elsewhere."""
    if not 0 <= label < classes:
        raise DataError(f"label must lie in 0 to {classes - 1} for {classes} classes, got {label}.")
    check_share("epsilon", epsilon)
    y = torch.full((classes,), epsilon / classes, dtype=torch.float64)
    y[label] = 1 - epsilon + epsilon / classes
    return y


def mixup(x1: Tensor, y1: Tensor, x2: Tensor, y2: Tensor, weight: float) -> Sample:
    """Return (1 - weight) of the first image and label plus `weight` of the second."""
    check_share("weight", weight)
    if x1.shape != x2.shape or y1.shape != y2.shape:
        raise DataError(
            f"Expected two samples of one shape, got images {tuple(x1.shape)} and "
            f"{tuple(x2.shape)}, labels {tuple(y1.shape)} and {tuple(y2.shape)}."
        )
    return Sample((1 - weight) * x1 + weight * x2, (1 - weight) * y1 + weight * y2)


def check_share(name: str, value: float) -> None:
    """Raise unless value lies in [0, 1]."""
    if not 0.0 <= value <= 1.0:
        raise DataError(f"{name} must lie in [0, 1], got {value}.")


# Makes the sample of an image by its index in the set.
Augmentation = Callable[[ImageSet, Normalisation, int, torch.Generator], Sample]


class _Labelled:
    """An augmentation that leaves the image as it is."""

    def label(self, images: ImageSet, index: int, generator: torch.Generator) -> Tensor:
        """Return the label (classes,) of image `index`."""
        raise NotImplementedError

    def __call__(
        self, images: ImageSet, norm: Normalisation, index: int, generator: torch.Generator
    ) -> Sample:
        return Sample(norm.apply(images.pixels(index)), self.label(images, index, generator))


@dataclass(frozen=True)
class Smoothing(_Labelled):
    """Give the image a smoothed label, with ε ~ U(low, high)."""

    low: float = 0.0
    high: float = 0.5

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)

    def label(self, images: ImageSet, index: int, generator: torch.Generator) -> Tensor:
        epsilon = _uniform(self.low, self.high, generator)
        return smooth(int(images.labels[index]), images.classes, epsilon)


@dataclass(frozen=True)
class Hard(Smoothing):
    """Give the image its one-hot label."""

    high: float = 0.0


@dataclass(frozen=True)
class Dirichlet(_Labelled):
    """Give the image any soft label at all, drawn from Dir(alpha, ..., alpha)."""

    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.alpha < float("inf"):
            raise DataError(f"alpha must be positive and finite, got {self.alpha}.")

    def label(self, images: ImageSet, _: int, generator: torch.Generator) -> Tensor:
        # torch draws from no Dirichlet with a generator, so NumPy does, from a seed torch draws.
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        y = np.random.default_rng(seed).dirichlet([self.alpha] * images.classes)
        return torch.from_numpy(y)


@dataclass(frozen=True)
class Mixup:
    """Mix in an image of another class, with λ ~ U(low, high)."""

    low: float = 0.0
    high: float = 1.0
    epsilon: float = 0.0  # by which both labels are smoothed

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)
        check_share("epsilon", self.epsilon)

    def __call__(
        self, images: ImageSet, norm: Normalisation, index: int, generator: torch.Generator
    ) -> Sample:
        """Return the sample made from image `index` (1 - λ) and its partner (λ)."""
        partner = _partner(images, index, generator)
        weight = _uniform(self.low, self.high, generator)
        x1, x2 = (norm.apply(images.pixels(i)) for i in (index, partner))
        y1, y2 = (
            smooth(int(images.labels[i]), images.classes, self.epsilon) for i in (index, partner)
        )
        return mixup(x1, y1, x2, y2, weight)


def _partner(images: ImageSet, index: int, generator: torch.Generator) -> int:
    others = (images.labels != images.labels[index]).nonzero().flatten()
    if not len(others):
        raise DataError("Mixup needs images of at least two classes, but the set has one.")
    choice = torch.randint(len(others), (), generator=generator, device=generator.device)
    return int(others[int(choice)])


def _uniform(low: float, high: float, generator: torch.Generator) -> float:
    draw = torch.rand((), generator=generator, device=generator.device, dtype=torch.float64)
    return low + (high - low) * float(draw)


def _check_range(low: float, high: float) -> None:
    check_share("low", low)
    check_share("high", high)
    if low > high:
        raise DataError(f"low must not exceed high, got {low} and {high}.")


def samples(
    images: ImageSet, augmentation: Augmentation, count: int, seed: int,
    normalisation: Normalisation, size: int | None = None,
) -> Iterator[Sample]:  # fmt: skip
    """Yield samples of images drawn at random; sample i depends on (seed, i) alone."""
    for number in range(count):
        yield nth_sample(images, augmentation, number, seed, normalisation, size)


def nth_sample(
    images: ImageSet, augmentation: Augmentation, number: int, seed: int,
    normalisation: Normalisation, size: int | None = None,
) -> Sample:  # fmt: skip
    """Return sample `number` of a stream, without computing those before it."""
    generator = numbered_generator(seed, number)
    index = int(torch.randint(len(images), (), generator=generator))
    sample = augmentation(images, normalisation, index, generator)
    return sample if size is None else Sample(resize(sample.x[None], size)[0], sample.y)


def numbered_generator(seed: int, number: int) -> torch.Generator:
    """Return the generator that sample `number` is drawn with."""
    if seed < 0:
        raise DataError(f"seed must be 0 or more, got {seed}.")
    mixed = np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(mixed) >> 1)
