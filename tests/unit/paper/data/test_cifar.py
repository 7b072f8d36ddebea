"""CIFAR files written here as the official ones are, and read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from softleak.core.errors import DataError
from softleak.paper.data import Split, load, load_cifar

Bytes = npt.NDArray[np.uint8]

TRAIN10 = [f"data_batch_{number}" for number in range(1, 6)]
NAMES10 = ["airplane", "automobile", "bird", "cat", *(f"thing_{n}" for n in "abcdef")]
NAMES100 = [f"thing_{number}" for number in range(100)]


def planes(seed: int, count: int = 3) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)


def images(rows: Bytes) -> torch.Tensor:
    """The meaning of a row: 1024 red, 1024 green, 1024 blue bytes, each row by row."""
    pixels = [
        [[row[c * 1024 + 32 * i + j] for c in range(3)] for i in range(32) for j in range(32)]
        for row in rows
    ]
    return torch.tensor(np.array(pixels, dtype=np.uint8)).reshape(-1, 32, 32, 3)


def write10(folder: Path) -> None:
    for seed, name in enumerate([*TRAIN10, "test_batch"]):
        labels = np.array([[seed], [9], [0]], dtype=np.uint8)
        (folder / f"{name}.bin").write_bytes(np.hstack([labels, planes(seed)]).tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(NAMES10) + "\n\n")


def write100(folder: Path) -> None:
    for seed, name in ((0, "train"), (5, "test")):
        labels = np.array([[1, seed], [2, 99], [3, 0]], dtype=np.uint8)
        (folder / f"{name}.bin").write_bytes(np.hstack([labels, planes(seed)]).tobytes())
    (folder / "fine_label_names.txt").write_text("\n".join(NAMES100) + "\n")


KINDS = {
    "cifar-10-batches-bin": write10,
    "cifar-100-binary": write100,
}


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    place = tmp_path / request.param
    place.mkdir()
    KINDS[request.param](place)
    return place


def check(place: Path, ten: bool) -> None:
    test = load(place)
    assert torch.equal(test.images, images(planes(5)))
    assert test.labels.tolist() == [5, 9 if ten else 99, 0]
    assert test.class_names[3] == ("cat" if ten else "thing_3")
    train = load(place, Split.TRAIN)
    assert len(train) == (15 if ten else 3)
    assert torch.equal(train.images[:3], images(planes(0)))
    assert train.labels[:3].tolist() == [0, 9 if ten else 99, 0]


def test_folder_and_its_parent(folder: Path) -> None:
    ten = "cifar-10-" in folder.name
    check(folder, ten)
    check(folder.parent, ten)


def test_names_may_be_missing(tmp_path: Path) -> None:
    write100(tmp_path)
    (tmp_path / "fine_label_names.txt").unlink()
    found = load_cifar(tmp_path)
    assert found.class_names[7] == "class 7"
    assert found.classes == 100


def test_missing_batches_are_named(tmp_path: Path) -> None:
    write10(tmp_path)
    (tmp_path / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_4\.bin"):
        load_cifar(tmp_path, Split.TRAIN)


@pytest.mark.parametrize("content", [b"", bytes(3072), bytes([10]) + bytes(3072), b"text"])
def test_wrong_files(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "test_batch.bin").write_bytes(content)
    with pytest.raises(DataError):
        load(tmp_path)


def test_the_version_for_python_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "test_batch").write_bytes(b"a pickle")
    with pytest.raises(DataError, match="binary version"):
        load(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    for call in (load, load_cifar):
        with pytest.raises(DataError, match="absent"):
            call(tmp_path / "absent")
