"""Read every kind of data set: packs, folders of images, and CIFAR-10 and -100 as distributed.

A pack (.npz) has pixels under `x`, differenced planes under `residual`, or photos under `jpeg`. It
has labels under `y` and may have `class_names`; `wnid` marks an ImageNet sample.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import tarfile
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import resources
from itertools import pairwise
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple, NoReturn

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


PIXELS = 3 * 32 * 32


class CifarBatch(NamedTuple):
    """Images as rows (N, 3072), each a red, a green and a blue plane, and their labels (N,)."""

    planes: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    fine: bool  # whether these are CIFAR-100's fine labels


_CIFAR10_RECORD = 1 + PIXELS
_CIFAR100_RECORD = 2 + PIXELS


def decode_binary(data: bytes) -> CifarBatch:
    """Return the batch in a .bin file; the fine label of CIFAR-100 is its second byte."""
    if not data or (len(data) % _CIFAR10_RECORD and len(data) % _CIFAR100_RECORD):
        raise DataError(
            f"A CIFAR .bin file is a whole number of records of {_CIFAR10_RECORD} "
            f"(CIFAR-10) or {_CIFAR100_RECORD} (CIFAR-100) bytes, got {len(data)} "
            "bytes: the file is cut short or another format."
        )
    fine = len(data) % _CIFAR10_RECORD != 0
    head = 2 if fine else 1
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, head + PIXELS)
    labels = rows[:, head - 1].astype(np.int64)
    classes = 100 if fine else 10
    if labels.max() >= classes:
        raise DataError(f"A CIFAR .bin file has label {labels.max()}, expected below {classes}.")
    return CifarBatch(rows[:, head:], labels, fine)


_MEMO_CODES = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_BYTE_TYPES = frozenset({"u1", "|u1", "uint8", "B"})


class _DType:
    """Stand for numpy.dtype: it keeps the type's name and ignore the state."""

    def __init__(self, name: object = "", *flags: object) -> None:
        self.name = name.decode("latin1") if isinstance(name, bytes) else name

    def __setstate__(self, state: object) -> None:
        pass


class _Array:
    """Stand for numpy.ndarray: it keeps shape, type and bytes as they were stored."""

    def __init__(self, *parts: object) -> None:
        self.parts = parts

    def __setstate__(self, state: object) -> None:
        # numpy stores (version, shape, dtype, Fortran order, bytes)
        if isinstance(state, tuple) and len(state) == 5:
            _, shape, dtype, fortran, raw = state
            self.parts = (raw, dtype, shape, "F" if fortran else "C")

    def bytes_array(self) -> npt.NDArray[np.uint8]:
        """Return the array itself, if it holds unsigned bytes in C or Fortran order."""
        if len(self.parts) != 4:
            raise DataError("A pickled array lacks its contents.")
        raw, dtype, shape, order = self.parts
        if not isinstance(dtype, _DType) or dtype.name not in _BYTE_TYPES:
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
    ("numpy", "dtype"): _DType,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),  # __setstate__ fills it
    ("numpy._core.multiarray", "_reconstruct"): lambda *_: _Array(),  # __setstate__ fills it
    ("numpy.core.numeric", "_frombuffer"): _Array,
    ("numpy._core.numeric", "_frombuffer"): _Array,
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
        _text(key): value.bytes_array() if isinstance(value, _Array) else value
        for key, value in content.items()
    }


def _text(value: object) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def decode_python(data: bytes) -> CifarBatch:
    """Return the batch in a data file; for CIFAR-100 with the fine labels."""
    content = unpickle(data)
    planes = content.get("data")
    if not isinstance(planes, np.ndarray) or planes.ndim != 2 or planes.shape[1] != PIXELS:
        raise DataError(f"Expected the key 'data' with bytes (N, {PIXELS}) in a CIFAR file.")
    fine = "fine_labels" in content
    labels = content.get("fine_labels" if fine else "labels")
    classes = 100 if fine else 10
    if not isinstance(labels, list) or len(labels) != len(planes):
        raise DataError(f"Expected a list of {len(planes)} labels in a CIFAR file.")
    if not all(type(label) is int and 0 <= label < classes for label in labels):
        raise DataError(f"Every label in this CIFAR file must be an integer below {classes}.")
    return CifarBatch(planes, np.array(labels, dtype=np.int64), fine)


def decode_python_names(data: bytes) -> tuple[str, ...]:
    """Return the fine class names in CIFAR-100's `meta` file."""
    names = unpickle(data).get("fine_label_names")
    if not isinstance(names, list) or not all(isinstance(name, (bytes, str)) for name in names):
        raise DataError("Expected a list of names under 'fine_label_names'.")
    return tuple(map(_text, names))


# The largest official file, CIFAR-100's training set, has 155 MB.
LARGEST_CIFAR_FILE = 512 * 2**20


def first_bytes(file: Path, count: int) -> bytes:
    """Return the first `count` bytes of a file, or all it has."""
    try:
        with file.open("rb") as stream:
            return stream.read(count)
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error}") from error


def read_file(file: Path) -> bytes:
    """Return the whole file, if it is no larger than a CIFAR file can be."""
    data = first_bytes(file, LARGEST_CIFAR_FILE + 1)
    _check_size(file.name, len(data))
    return data


def read_folder(folder: Path, wanted: Collection[str]) -> dict[str, bytes]:
    """Return those of the wanted files that the folder has."""
    return {name: read_file(folder / name) for name in wanted if (folder / name).is_file()}


def read_archive(file: Path, wanted: Collection[str]) -> dict[str, bytes]:
    """Return those of the wanted files that the archive has, in whichever folder inside it."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(file) as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                if name not in wanted or not member.isreg():
                    continue
                _check_size(name, member.size)
                stream = archive.extractfile(member)
                found[name] = stream.read() if stream else b""
    except DataError:
        raise
    except Exception as error:  # tarfile and its decompressors each raise their own
        raise DataError(f"{file} is not a readable tar archive: {error}") from error
    return found


def _check_size(name: str, size: int) -> None:
    if size > LARGEST_CIFAR_FILE:
        raise DataError(f"{name} has more bytes than any CIFAR file: over {LARGEST_CIFAR_FILE}.")


CIFAR10_NAMES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip


class Split(Enum):
    """The part of a data set that is read."""

    TRAIN = "train"
    TEST = "test"


@dataclass(frozen=True)
class Layout:
    """One distribution."""

    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    decode: Callable[[bytes], CifarBatch]

    def files(self, split: Split) -> tuple[str, ...]:
        return self.train if split is Split.TRAIN else self.test


_TRAINING_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_BINARY_BATCHES = tuple(f"{name}.bin" for name in _TRAINING_BATCHES)
LAYOUTS = (
    Layout("cifar-10-batches-py", _TRAINING_BATCHES, ("test_batch",), decode_python),
    Layout("cifar-10-batches-bin", _BINARY_BATCHES, ("test_batch.bin",), decode_binary),
    Layout("cifar-100-python", ("train",), ("test",), decode_python),
    Layout("cifar-100-binary", ("train.bin",), ("test.bin",), decode_binary),
)
# The files with CIFAR-100's class names, and how each is read.
NAME_FILES: Mapping[str, Callable[[bytes], tuple[str, ...]]] = {
    "meta": decode_python_names,
    "fine_label_names.txt": lambda data: tuple(data.decode("latin1").split()),
}


# Every pickle of protocol 2 or later begins so, and no label byte is as large.
_PICKLE_START = b"\x80"


def load_cifar(path: str | PathLike[str], split: Split = Split.TEST) -> ImageSet:
    """Read one split of CIFAR: a folder, a tar archive, or a single file, whatever the split."""
    place = Path(path)
    if place.is_dir():
        return _assemble(read_folder(_home(place), _wanted(split)), split, place)
    if not place.is_file():
        raise DataError(f"No CIFAR folder, archive or file at {place}.")
    head = first_bytes(place, 262)
    if head[:2] == b"\x1f\x8b" or head[257:] == b"ustar":  # gzipped or plain tar
        return _assemble(read_archive(place, _wanted(split)), split, place)
    data = read_file(place)
    batch = decode_python(data) if data[:1] == _PICKLE_START else decode_binary(data)
    return _join([batch], _names(read_folder(place.parent, NAME_FILES)))


def is_cifar_folder(place: Path) -> bool:
    """Return whether a folder, or one of an official name in it, holds CIFAR files."""
    home = _home(place)
    names = (name for layout in LAYOUTS for name in (*layout.train, *layout.test))
    return any((home / name).is_file() for name in names)


def _home(place: Path) -> Path:
    inside = (place / layout.folder for layout in LAYOUTS)
    return next((folder for folder in inside if folder.is_dir()), place)


def _wanted(split: Split) -> set[str]:
    return set(NAME_FILES).union(*(layout.files(split) for layout in LAYOUTS))


def _assemble(found: Mapping[str, bytes], split: Split, place: Path) -> ImageSet:
    layout = next((x for x in LAYOUTS if any(name in found for name in x.files(split))), None)
    if layout is None:
        expected = ", ".join(layout.files(split)[0] for layout in LAYOUTS)
        raise DataError(f"{place} has no CIFAR {split.value} files; expected one of {expected}.")
    missing = [name for name in layout.files(split) if name not in found]
    if missing:
        raise DataError(f"{place} lacks {', '.join(missing)} of {layout.folder}.")
    return _join([layout.decode(found[name]) for name in layout.files(split)], _names(found))


def _names(found: Mapping[str, bytes]) -> tuple[str, ...]:
    """Return CIFAR-100's class names, or numbered ones where no file gives them."""
    for file, decode in NAME_FILES.items():
        if file in found:
            return decode(found[file])
    return tuple(f"class {number}" for number in range(100))


def _join(batches: Sequence[CifarBatch], fine_names: tuple[str, ...]) -> ImageSet:
    if len({batch.fine for batch in batches}) > 1:
        raise DataError("CIFAR-10 and CIFAR-100 files are mixed in one folder.")
    planes = np.concatenate([batch.planes for batch in batches]).reshape(-1, 3, 32, 32)
    images = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
    labels = np.concatenate([batch.labels for batch in batches])
    names = fine_names if batches[0].fine else CIFAR10_NAMES
    return ImageSet(torch.from_numpy(images), torch.from_numpy(labels), names)


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


_ZIP_START = b"PK"


def load(path: str | PathLike[str], split: Split = Split.TEST, size: int | None = None) -> ImageSet:
    """Read an .npz pack, a CIFAR folder, archive or file, or a folder of class folders.

    ``split`` is the part of a CIFAR folder or archive; ``size`` makes the images square, if given.
    """
    place = Path(path)
    if place.is_dir() and not is_cifar_folder(place):
        return load_folder(place, size)
    if not place.exists():
        raise DataError(f"No data at {place}.")
    is_pack = place.is_file() and first_bytes(place, len(_ZIP_START)) == _ZIP_START
    images = load_pack(place) if is_pack else load_cifar(place, split)
    return images if size is None else images.resized(size)
