"""This module decodes CIFAR's "binary version": label bytes and 3072 pixels per record."""

from __future__ import annotations

import numpy as np

from softleak.data.cifar_batch import PIXELS, CifarBatch, from_planes
from softleak.errors import DataError

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
    return from_planes(rows[:, head:], labels, fine)


def decode_binary_names(data: bytes) -> tuple[str, ...]:
    """Return the class names in a text file, one per line."""
    return tuple(data.decode("latin1").split())
