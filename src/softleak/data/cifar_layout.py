"""This module lists the four official distributions of CIFAR: folders, files and readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from softleak.data.cifar_batch import CifarBatch
from softleak.data.cifar_binary import decode_binary, decode_binary_names
from softleak.data.cifar_python import decode_python, decode_python_names

CIFAR10_NAMES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip


class Split(Enum):
    """This is the part of a data set that is read."""

    TRAIN = "train"
    TEST = "test"


@dataclass(frozen=True)
class Names:
    """This is the file with CIFAR-100's class names, and how it is read."""

    file: str
    decode: Callable[[bytes], tuple[str, ...]]


@dataclass(frozen=True)
class Layout:
    """This is one distribution; CIFAR-10 needs no file of names."""

    folder: str
    files: Mapping[Split, tuple[str, ...]]
    decode: Callable[[bytes], CifarBatch]
    names: Names | None = None


_TRAINING_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_PYTHON_NAMES = Names("meta", decode_python_names)
_BINARY_NAMES = Names("fine_label_names.txt", decode_binary_names)

LAYOUTS = (
    Layout(
        "cifar-10-batches-py",
        {Split.TRAIN: _TRAINING_BATCHES, Split.TEST: ("test_batch",)},
        decode_python,
    ),
    Layout(
        "cifar-10-batches-bin",
        {
            Split.TRAIN: tuple(f"{name}.bin" for name in _TRAINING_BATCHES),
            Split.TEST: ("test_batch.bin",),
        },
        decode_binary,
    ),
    Layout(
        "cifar-100-python",
        {Split.TRAIN: ("train",), Split.TEST: ("test",)},
        decode_python,
        _PYTHON_NAMES,
    ),
    Layout(
        "cifar-100-binary",
        {Split.TRAIN: ("train.bin",), Split.TEST: ("test.bin",)},
        decode_binary,
        _BINARY_NAMES,
    ),
)
