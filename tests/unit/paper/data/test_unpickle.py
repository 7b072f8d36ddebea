"""The restricted unpickler, against genuine, damaged and hostile pickles."""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softleak.core.errors import DataError
from softleak.paper.data.load import unpickle

DATA = np.arange(2 * 3072, dtype=np.int64).astype(np.uint8).reshape(2, 3072)

# What Python 2 and the NumPy of 2009 wrote: byte strings, numpy.core, protocol 2.
OLD = (
    b"\x80\x02}q\x01(U\x04datacnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03"
    b"K\x00\x85U\x01b\x87Rq\x04(K\x01K\x01K\x04\x86cnumpy\ndtype\nq\x05U\x02u1K\x00K\x01\x87R"
    b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x04\x00\x07\xfe\xfftb"
    b"U\x06labels]q\x06K\x05au."
)


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("order", ["C", "F"])
def test_genuine_files_of_every_protocol(protocol: int, order: str) -> None:
    array = np.array(DATA, order=order)
    content = unpickle(pickle.dumps({b"data": array, "labels": [3, 9]}, protocol=protocol))
    np.testing.assert_array_equal(content["data"], DATA)
    assert content["labels"] == [3, 9]


def test_a_python_2_file() -> None:
    content = unpickle(OLD)
    np.testing.assert_array_equal(content["data"], np.array([[0, 7, 254, 255]], dtype=np.uint8))
    assert content["labels"] == [5]


def test_the_new_name_of_numpy_core() -> None:
    content = unpickle(OLD.replace(b"numpy.core.", b"numpy._core."))
    assert content["labels"] == [5]


class Calls:
    def __init__(self, function: object, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "call", [(os.system, "mkdir harmed"), (os.mkdir, "harmed"), (eval, "1"), (bytes, 9)]
)
def test_calls_are_refused_and_not_made(
    call: tuple[object, ...], protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="do not trust"):
        unpickle(pickle.dumps({"data": Calls(*call)}, protocol=protocol))
    assert not Path("harmed").exists()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "readable"),
        (b"\x80\x02]q\x01.", "dictionary"),
        (pickle.dumps({"data": DATA})[:-100], "readable"),
        (pickle.dumps({"data": DATA.astype(np.float32)}), "unsigned bytes"),
        (pickle.dumps({"data": np.array([None, 1])}), "unsigned bytes|stored as bytes"),
        (b"\x80\x02Px\n.", "readable|outside"),
        (b"\x80\x02}r" + struct.pack("<I", 2**31) + b".", "memo"),
        (b"\x80\x02}U\x04datacnumpy\nndarray\n)Rs.", "lacks"),
        (OLD.replace(b"K\x01K\x04\x86c", b"K\x01K\x05\x86c"), "shape"),
        (
            b"\x80\x02}U\x01ac_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86Rs.",
            "latin1",
        ),
    ],
)
def test_what_is_wrong_is_said(data: bytes, said: str) -> None:
    with pytest.raises(DataError, match=said):
        unpickle(data)


@given(st.data())
def test_damage_never_escapes_as_another_error(data: st.DataObject) -> None:
    damaged = bytearray(OLD)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(OLD) - 1))
        damaged[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DataError):
        unpickle(bytes(damaged))
