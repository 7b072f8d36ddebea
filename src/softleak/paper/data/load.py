"""Read data sets: packs, folders of images, and the folders in which CIFAR is distributed.

A pack (.npz) has pixels under `x`, differenced planes under `residual`, or photos under `jpeg`. It
has labels under `y` and may have `class_names`; `wnid` marks an ImageNet sample.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import resources
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import IO, Any, NoReturn

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


_MEMO_CODES = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_BYTE_TYPES = [(name,) for name in ("u1", b"u1", "|u1", b"|u1", "uint8", b"uint8", "B", b"B")]


class _Stored:
    """Stand for numpy's arrays and types: it keeps what was stored, and computes nothing."""

    def __init__(self, *parts: object) -> None:
        self.parts = parts

    def __setstate__(self, state: object) -> None:
        # numpy stores (version, shape, dtype, Fortran order, bytes) of an array
        if isinstance(state, tuple) and len(state) == 5:
            _, shape, dtype, fortran, raw = state
            self.parts = (raw, dtype, shape, "F" if fortran else "C")

    def bytes_array(self) -> npt.NDArray[np.uint8]:
        """Return the array itself, if it holds unsigned bytes in C or Fortran order."""
        if len(self.parts) != 4:
            raise DataError("A pickled array lacks its contents.")
        raw, dtype, shape, order = self.parts
        named = dtype.parts[:1] if isinstance(dtype, _Stored) else ()
        if named not in _BYTE_TYPES:
            raise DataError("Expected a pickled array of unsigned bytes, got another type.")
        if not isinstance(raw, (bytes, bytearray)) or not isinstance(shape, tuple):
            raise DataError("A pickled array is not stored as bytes and a shape.")
        sizes = [n for n in shape if isinstance(n, int) and n >= 0]
        if len(sizes) != len(shape) or math.prod(sizes) != len(raw):
            raise DataError("A pickled array's shape does not match its bytes.")
        flat = np.frombuffer(bytes(raw), dtype=np.uint8)
        return flat.reshape(sizes, order="F" if order == "F" else "C")


def _encode(text: object, encoding: object) -> bytes:
    """Return encoded text, as _codecs.encode does when Python 3 reads bytes of protocol 2."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise DataError("A pickle asks for an encoding other than latin1.")
    return text.encode("latin1")


_STAND_INS = {
    ("_codecs", "encode"): _encode,
    ("numpy", "dtype"): _Stored,
    ("numpy", "ndarray"): _Stored,
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Stored(),  # __setstate__ fills it
    ("numpy._core.multiarray", "_reconstruct"): lambda *_: _Stored(),  # __setstate__ fills it
    ("numpy.core.numeric", "_frombuffer"): _Stored,
    ("numpy._core.numeric", "_frombuffer"): _Stored,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise DataError(
                f"The pickle asks for {module}.{name}, which no CIFAR file needs. "
                "It was not run; do not trust this file."
            ) from None

    def persistent_load(self, _: object) -> NoReturn:
        raise DataError("The pickle refers to objects outside itself, which no CIFAR file does.")


def unpickle(data: bytes) -> dict[str, object]:
    """Return the dictionary in a pickled CIFAR file, keys as text and arrays as arrays."""
    try:
        # A huge memo index makes the reader allocate a table of that size.
        for code, argument, _ in pickletools.genops(data):
            if code.name in _MEMO_CODES and isinstance(argument, int) and argument > len(data):
                raise DataError("The pickle's memo index is out of all proportion.")
        content = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle may raise almost anything
        raise DataError(f"Not a readable CIFAR pickle: {error}") from error
    if not isinstance(content, dict):
        raise DataError(f"Expected a dictionary in a CIFAR pickle, got {type(content).__name__}.")
    return {
        _text(key): value.bytes_array() if isinstance(value, _Stored) else value
        for key, value in content.items()
    }


def _text(value: object) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


CIFAR10_NAMES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
CIFAR_PIXELS = 3 * 32 * 32
LARGEST_CIFAR_FILE = 512 * 2**20  # the largest official file has 155 MB


class Split(Enum):
    """The part of a data set that is read."""

    TRAIN = "train"
    TEST = "test"


# The files of each split in the folders for Python, which hold pickles.
CIFAR_FILES: Mapping[str, Mapping[Split, tuple[str, ...]]] = {
    "cifar-10-batches-py": {
        Split.TRAIN: tuple(f"data_batch_{number}" for number in range(1, 6)),
        Split.TEST: ("test_batch",),
    },
    "cifar-100-python": {Split.TRAIN: ("train",), Split.TEST: ("test",)},
}


def load_cifar(path: str | PathLike[str], split: Split = Split.TEST) -> ImageSet:
    """Read one split of CIFAR-10 or CIFAR-100 from its folder for Python, or one that holds it."""
    place = Path(path)
    files = _cifar_files(place, split)
    if lacking := [file.name for file in files if not file.is_file()]:
        raise DataError(f"{place} lacks {', '.join(lacking)} of CIFAR.")
    if not files:
        expected = ", ".join(names[split][0] for names in CIFAR_FILES.values())
        raise DataError(f"{place} has no CIFAR {split.value} files; expected one of {expected}.")
    batches = [_cifar_batch(_cifar_content(file)) for file in files]
    planes, labels, fine = (list(part) for part in zip(*batches, strict=True))
    images = np.concatenate(planes).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return ImageSet(
        torch.from_numpy(np.ascontiguousarray(images)),
        torch.from_numpy(np.concatenate(labels)),
        _fine_names(files[0].parent) if any(fine) else CIFAR10_NAMES,
    )


def is_cifar_folder(place: Path) -> bool:
    """Return whether a folder, or one of an official name in it, holds CIFAR files."""
    return any(_cifar_files(place, split) for split in Split)


def _cifar_files(place: Path, split: Split) -> list[Path]:
    """Return the files that a split consists of; none unless at least one of them is there."""
    home = next((place / name for name in CIFAR_FILES if (place / name).is_dir()), place)
    for names in CIFAR_FILES.values():
        files = [home / name for name in names[split]]
        if any(file.is_file() for file in files):
            return files
    return []


def _cifar_content(file: Path) -> dict[str, object]:
    if file.stat().st_size > LARGEST_CIFAR_FILE:
        raise DataError(f"{file.name} has more bytes than any CIFAR file: {LARGEST_CIFAR_FILE}.")
    return unpickle(file.read_bytes())


def _cifar_batch(
    content: Mapping[str, object],
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], bool]:
    """Return rows (N, 3072) of a red, a green and a blue plane, labels, and whether these are fine.

    Fine labels are those of CIFAR-100's hundred classes.
    """
    planes = content.get("data")
    if not isinstance(planes, np.ndarray) or planes.ndim != 2 or planes.shape[1] != CIFAR_PIXELS:
        raise DataError(f"Expected the key 'data' with bytes (N, {CIFAR_PIXELS}) in a CIFAR file.")
    fine = "fine_labels" in content
    labels, classes = content.get("fine_labels" if fine else "labels"), 100 if fine else 10
    if not isinstance(labels, list) or len(labels) != len(planes):
        raise DataError(f"Expected a list of {len(planes)} labels in a CIFAR file.")
    if not all(type(label) is int and 0 <= label < classes for label in labels):
        raise DataError(f"Every label in this CIFAR file must be an integer below {classes}.")
    return planes, np.array(labels, dtype=np.int64), fine


def _fine_names(folder: Path) -> tuple[str, ...]:
    """Return the class names in CIFAR-100's `meta` file, or numbered ones if there is none."""
    if not (folder / "meta").is_file():
        return tuple(f"class {number}" for number in range(100))
    names = _cifar_content(folder / "meta").get("fine_label_names")
    if not isinstance(names, list) or not all(isinstance(name, (bytes, str)) for name in names):
        raise DataError("Expected a list of names under 'fine_label_names'.")
    return tuple(map(_text, names))


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
            f"with files ending in {', '.join(sorted(_SUFFIXES))}."
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


FILES = resources.files("softleak.paper.data").joinpath("files")


def embedded() -> ImageSet:
    """Return 200 CIFAR-10 test images, 20 of each class."""
    with resources.as_file(FILES.joinpath("cifar10_sample200.npz")) as path:
        return load_pack(path)


def verses() -> tuple[str, ...]:
    """Return 715 verses of the King James Bible, which is in the public domain."""
    return tuple(FILES.joinpath("verses.txt").read_text("ascii").splitlines())


def load(path: str | PathLike[str], split: Split = Split.TEST, size: int | None = None) -> ImageSet:
    """Read an .npz pack, a folder of CIFAR for Python, or a folder of class folders.

    ``split`` is the part of CIFAR that is read; ``size`` makes the images square, if given.
    """
    place = Path(path)
    if not place.exists():
        raise DataError(f"No data at {place}.")
    if place.is_dir() and not is_cifar_folder(place):
        return load_folder(place, size)
    images = load_cifar(place, split) if place.is_dir() else load_pack(place)
    return images if size is None else images.resized(size)
