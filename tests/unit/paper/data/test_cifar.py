"""CIFAR files written here as the official ones are, and read back."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from softleak.core.errors import DataError
from softleak.paper.data import Split, load, load_cifar

Bytes = npt.NDArray[np.uint8]

TRAIN10 = [f"data_batch_{number}" for number in range(1, 6)]
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


def write_python10(folder: Path) -> None:
    for seed, name in enumerate([*TRAIN10, "test_batch"]):
        batch = {b"data": planes(seed), b"labels": [seed, 9, 0], b"batch_label": b"x"}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))


def write_python100(folder: Path) -> None:
    for seed, name in ((0, "train"), (5, "test")):
        batch = {"data": planes(seed), "fine_labels": [seed, 99, 0], "coarse_labels": [0, 1, 2]}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    meta = {b"fine_label_names": NAMES100, b"coarse_label_names": []}
    (folder / "meta").write_bytes(pickle.dumps(meta, protocol=2))


KINDS = {
    "cifar-10-batches-py": write_python10,
    "cifar-100-python": write_python100,
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


def test_fine_names_may_be_missing(tmp_path: Path) -> None:
    write_python100(tmp_path)
    (tmp_path / "meta").unlink()
    assert load_cifar(tmp_path).class_names[7] == "class 7"


def test_missing_batches_are_named(tmp_path: Path) -> None:
    write_python10(tmp_path)
    (tmp_path / "data_batch_4").unlink()
    with pytest.raises(DataError, match="data_batch_4"):
        load_cifar(tmp_path, Split.TRAIN)
    (tmp_path / "test_batch").unlink()
    with pytest.raises(DataError, match="no CIFAR test files"):
        load_cifar(tmp_path)


@pytest.mark.parametrize(
    "batch",
    [
        {"labels": [1, 2, 3]},
        {"data": planes(0)},
        {"data": planes(0), "labels": [1, 2]},
        {"data": planes(0), "labels": [1, 2, 10]},
        {"data": planes(0), "labels": [1, 2, "3"]},
        {"data": planes(0), "labels": [1, 2, True]},
        {"data": planes(0)[:, :3071], "labels": [1, 2, 3]},
    ],
)
def test_wrong_batches(batch: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "test_batch").write_bytes(pickle.dumps(batch, protocol=2))
    with pytest.raises(DataError):
        load(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    for call in (load, load_cifar):
        with pytest.raises(DataError, match="absent"):
            call(tmp_path / "absent")
