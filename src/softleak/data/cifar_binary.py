"""One file of CIFAR's "binary version": records of one or two label bytes and 3072 pixels."""

from __future__ import annotations

import numpy as np

from softleak.data.cifar_batch import PIXELS, Batch, from_planes
from softleak.errors import DataError

_TEN = 1 + PIXELS
_HUNDRED = 2 + PIXELS


def decode_binary(data: bytes) -> Batch:
    """The batch in a .bin file; for CIFAR-100 with the fine label, its second byte."""
    if not data or (len(data) % _TEN and len(data) % _HUNDRED):
        raise DataError(
            f"A CIFAR .bin file is a whole number of records of {_TEN} (CIFAR-10) or {_HUNDRED} "
            f"(CIFAR-100) bytes, got {len(data)} bytes: the file is cut short or another format."
        )
    fine = len(data) % _TEN != 0
    head = 2 if fine else 1
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, head + PIXELS)
    labels = rows[:, head - 1].astype(np.int64)
    classes = 100 if fine else 10
    if labels.max() >= classes:
        raise DataError(f"A CIFAR .bin file has label {labels.max()}, expected below {classes}.")
    return from_planes(rows[:, head:], labels, fine)


def decode_binary_names(data: bytes) -> tuple[str, ...]:
    """The class names in a text file, one a line."""
    return tuple(data.decode("latin1").split())
