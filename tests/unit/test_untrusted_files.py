"""What files claim and do not have, format by format."""

from __future__ import annotations

import io
import json
import struct
import warnings
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import softleak as sl
from softleak.core.errors import FileError, ShareError
from softleak.io.untrusted import checked_shape, shown


def refused(path, words: str) -> None:
    with pytest.raises(FileError, match=words) as caught:
        sl.GradientShare.load(path)
    assert "\n" not in str(caught.value)


def test_a_number_cannot_pose_as_a_terabyte(tmp_path):
    torch.save({"w": torch.ones(1).expand(1 << 38)}, tmp_path / "x.pt")
    refused(tmp_path / "x.pt", "does not have them")


@pytest.mark.parametrize("ending", [".pt", ".ckpt", ".npz", ".safetensors"])
def test_an_empty_file_is_called_empty(ending, tmp_path):
    (tmp_path / f"x{ending}").write_bytes(b"")
    refused(tmp_path / f"x{ending}", "it is empty; copy it again")


def test_a_file_that_was_cut_off_is_called_incomplete(tmp_path):
    tensors = {"w": torch.zeros(1 << 12)}
    torch.save(tensors, tmp_path / "x.pt")
    save_file(tensors, tmp_path / "x.safetensors")
    for path in (tmp_path / "x.pt", tmp_path / "x.safetensors"):
        path.write_bytes(path.read_bytes()[:5000])
        refused(path, "incomplete.*copy it again")
    (tmp_path / "old.pt").write_bytes(b"\x80\x02nonsense")
    refused(tmp_path / "old.pt", "load it with the version it came from")


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"not JSON", "its header is not JSON"),
        (b"\xff\xfe\xff\xfe", "its header is not JSON"),
        (b"[1, 2]", "not a list of tensors"),
        (b'{"w": [], "v": {"data_offsets": "0"}}', "not a readable"),
    ],
)
def test_a_header_of_something_else_is_named(header, words, tmp_path):
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    refused(tmp_path / "x.safetensors", words)


def test_archives_that_unfold_are_refused(tmp_path):
    plain = tmp_path / "x.pt"
    torch.save({"w": torch.zeros(1 << 20)}, plain)
    packed = tmp_path / "packed.pt"
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.infolist():
            new.writestr(member.filename, old.read(member))
    refused(packed, "compressed")


def npy(array: np.ndarray) -> bytearray:
    into = io.BytesIO()
    np.save(into, array)
    return bytearray(into.getvalue())


def test_an_array_that_claims_more_than_it_has(tmp_path):
    lying = npy(np.ones(3)).replace(b"(3,), ", b"(3000000000,), ")
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("w.npy", bytes(lying))
    refused(tmp_path / "x.npz", "claims|EOF|header")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_held_twice_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        for value in (1.0, 2.0):
            archive.writestr("w.npy", bytes(npy(np.full(2, value))))
    refused(tmp_path / "x.npz", "twice")
    entry = '{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    header = f'{{"w":{entry},"w":{entry}}}'.encode()
    content = struct.pack("<Q", len(header)) + header + bytes(4)
    (tmp_path / "x.safetensors").write_bytes(content)
    refused(tmp_path / "x.safetensors", "twice")


def test_a_header_longer_than_the_file(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
    refused(tmp_path / "x.safetensors", "header claims")


def test_old_pickles_are_refused_with_what_to_do(tmp_path):
    torch.save({"w": torch.ones(2)}, tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    refused(tmp_path / "x.pt", "save it again")


def test_sparse_and_quantised_gradients_say_what_to_do(tmp_path):
    torch.save({"w": torch.eye(3).to_sparse()}, tmp_path / "sparse.pt")
    refused(tmp_path / "sparse.pt", "to_dense")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantised = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
        torch.save({"w": quantised}, tmp_path / "q.pt")
        refused(tmp_path / "q.pt", "quantised|qint8|Unsupported")
    np.savez(tmp_path / "int8.npz", w=np.ones(3, dtype=np.int8))
    with pytest.raises(ShareError, match="int8"):
        sl.GradientShare.load(tmp_path / "int8.npz")


def test_half_precision_and_foreign_byte_order_are_read(tmp_path):
    np.savez(tmp_path / "x.npz", half=np.ones(3, np.float16), big=np.ones(3, ">f4"))
    share = sl.GradientShare.load(tmp_path / "x.npz")
    assert share["half"].dtype == torch.float16
    assert torch.equal(share["big"], torch.ones(3))


@pytest.mark.parametrize("shape", [[10**9] * 4, [-1], [0], "big", [1.5], [True], [[1]], [1] * 20])
def test_lies_about_the_input_are_refused(tmp_path, shape):
    meta = json.dumps({"input_shape": shape, "rounding": {}})
    torch.save({"gradients": {"w": torch.ones(2)}, "softleak": meta}, tmp_path / "x.pt")
    refused(tmp_path / "x.pt", "input")


def test_a_shape_that_is_no_list_is_called_that():
    with pytest.raises(FileError, match="not a list of at most 8 sizes"):
        checked_shape("big")


def test_names_a_terminal_would_obey_are_refused_and_never_printed(tmp_path):
    torch.save({"\x1b[2Jw": torch.ones(2)}, tmp_path / "x.pt")
    refused(tmp_path / "x.pt", r"unreadable name '\\x1b")
    assert shown("a\x1b[2J\udc80b") == "a\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}b"


def test_impossible_paths_are_only_missing_files(tmp_path):
    for name in ("x" * 5000 + ".pt", "\0.pt"):
        refused(tmp_path / name, "found none")
