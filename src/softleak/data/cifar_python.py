"""This module decodes CIFAR's "python version", which is a pickled dictionary."""

from __future__ import annotations

import numpy as np

from softleak.data.cifar_batch import PIXELS, CifarBatch, from_planes
from softleak.data.unpickle import unpickle
from softleak.errors import DataError


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
    return from_planes(planes, np.array(labels, dtype=np.int64), fine)


def decode_python_names(data: bytes) -> tuple[str, ...]:
    """Return the fine class names in CIFAR-100's `meta` file."""
    names = unpickle(data).get("fine_label_names")
    if not isinstance(names, list) or not all(isinstance(name, (bytes, str)) for name in names):
        raise DataError("Expected a list of names under 'fine_label_names'.")
    return tuple(name.decode("latin1") if isinstance(name, bytes) else name for name in names)
