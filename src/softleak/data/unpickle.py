"""This module reads pickled CIFAR batches without running anything a pickle asks for.

A pickle may name any importable object and call it. Here the few names a CIFAR file needs stand for
inert records defined below, and any other name is refused. NumPy is first called afterwards, on
bytes whose type and length have been checked.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from softleak.errors import DataError

_MEMO_CODES = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_BYTE_TYPES = frozenset({"u1", "|u1", "uint8", "B"})


class _DType:
    """This stands for numpy.dtype: it keeps the type's name and ignores the state."""

    def __init__(self, name: object = "", *flags: object) -> None:
        self.name = name.decode("latin1") if isinstance(name, bytes) else name

    def __setstate__(self, state: object) -> None:
        pass


class _Array:
    """This stands for numpy.ndarray: it keeps shape, type and bytes as they were stored."""

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


def _reconstruct(*_: object) -> _Array:
    """Return an empty record for numpy's _reconstruct; __setstate__ fills it."""
    return _Array()


_STAND_INS = {
    ("_codecs", "encode"): _encode,
    ("numpy", "dtype"): _DType,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
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
    return {_text(key): _value(value) for key, value in content.items()}


def _text(value: object) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _value(value: object) -> object:
    return value.bytes_array() if isinstance(value, _Array) else value
