from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from softleak.core.errors import DataError
from softleak.io import untrusted
from softleak.paper.data import embedded, load, load_pack

RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)
Y = np.array([0, 1, 2, 0, 1, 2])
NAMES = np.array(["ant", "bee", "cow"])


def residual(x: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The packs' planes, made in the other direction: subtract green, then the neighbours."""
    red, green, blue = (x[..., c].astype(int) for c in range(3))
    planes = np.stack([red - green, green, blue - green], axis=1)
    planes = np.diff(np.diff(planes, axis=2, prepend=0), axis=3, prepend=0)
    return (planes % 256).astype(np.uint8)


def write(path: Path, compression: int = zipfile.ZIP_DEFLATED, **arrays: object) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for key, array in arrays.items():
            with archive.open(f"{key}.npy", "w") as stream:
                np.lib.format.write_array(stream, np.asarray(array))
    return path


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_LZMA])
def test_pixels_and_residuals_are_the_same_images(compression: int, tmp_path: Path) -> None:
    plain = load(write(tmp_path / "a.npz", compression, x=X, y=Y, class_names=NAMES, index=Y))
    coded = load(write(tmp_path / "b.npz", compression, residual=residual(X), y=Y))
    assert torch.equal(plain.images, torch.from_numpy(X))
    assert torch.equal(coded.images, plain.images)
    assert plain.labels.tolist() == Y.tolist()
    assert plain.class_names == ("ant", "bee", "cow")
    assert coded.class_names == ("class 0", "class 1", "class 2")


def test_grey_and_size(tmp_path: Path) -> None:
    data = load(write(tmp_path / "a.npz", x=X[..., 0], y=Y.astype(np.uint8)), size=8)
    assert data.shape == (1, 8, 8)


def photos(*sizes: tuple[int, int]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    image = pytest.importorskip("PIL.Image")
    joined, offsets = b"", [0]
    for number, size in enumerate(sizes):
        stream = io.BytesIO()
        image.new("RGB", size, (40 * number,) * 3).save(stream, "JPEG")
        joined += stream.getvalue()
        offsets.append(len(joined))
    return np.frombuffer(joined, dtype=np.uint8), np.array(offsets)


def test_photos(tmp_path: Path) -> None:
    jpeg, offsets = photos((8, 6), (8, 6))
    data = load(write(tmp_path / "a.npz", jpeg=jpeg, offsets=offsets, y=[1, 0]))
    assert data.shape == (3, 6, 8)
    assert data.images[:, 2, 2, 1].tolist() == [0, 40]


def test_an_imagenet_sample_names_its_own_classes(tmp_path: Path) -> None:
    wnid = np.array(["n1", "n2"])
    data = load(write(tmp_path / "a.npz", x=X[:2], y=[4, 998], class_names=NAMES[:2], wnid=wnid))
    assert data.classes == 1000
    assert [data.class_names[i] for i in (4, 5, 998)] == ["ant", "class 5", "bee"]


JPEG = np.zeros(9, dtype=np.uint8)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"y": Y}, "key x, residual"),
        ({"x": X}, "under y"),
        ({"x": X, "y": Y[:5]}, "one for each image"),
        ({"x": X, "y": Y * 1.0}, "integer labels"),
        ({"x": X, "y": Y - 1}, "from -1"),
        ({"x": X, "y": Y * 10**9}, "expected from 0"),
        ({"x": X, "y": Y, "class_names": NAMES[:2]}, "2 class names"),
        ({"x": X / 255, "y": Y}, "uint8"),
        ({"x": X[0], "y": Y}, "shape|int64|uint8"),
        ({"residual": X, "y": Y}, "N, 3, H, W"),
        ({"jpeg": JPEG, "offsets": np.array([0, 9]), "y": [0]}, "photo 0"),
        ({"jpeg": JPEG, "offsets": np.array([0, 5, 3, 9]), "y": Y[:3]}, "rise"),
        ({"jpeg": JPEG, "offsets": np.array([0, 10**9]), "y": [0]}, "rise"),
        ({"jpeg": JPEG, "offsets": np.array([-5, 9]), "y": [0]}, "rise"),
        ({"jpeg": JPEG, "offsets": np.array([0.0, 9.0]), "y": [0]}, "int64"),
        ({"x": X, "y": Y, "class_names": np.array(["a", None, "b"], dtype=object)}, "readable"),
    ],
)
def test_wrong_packs(arrays: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        load(write(tmp_path / "a.npz", **arrays))


def test_photos_of_two_sizes(tmp_path: Path) -> None:
    jpeg, offsets = photos((8, 6), (6, 8))
    with pytest.raises(DataError, match="one size"):
        load(write(tmp_path / "a.npz", jpeg=jpeg, offsets=offsets, y=[1, 0]))


@pytest.mark.parametrize(
    "compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA]
)
def test_truncated_and_damaged_files(compression: int, tmp_path: Path) -> None:
    whole = write(tmp_path / "a.npz", compression, x=X, y=Y).read_bytes()
    file = tmp_path / "b.npz"
    for length in (3, 60, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(DataError):
            load_pack(file)
    middle = bytearray(whole)
    middle[100:140] = bytes(40)
    file.write_bytes(middle)
    with pytest.raises(DataError):
        load_pack(file)


def test_a_claim_of_great_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "a.npz", x=np.zeros((100, 64, 64, 3), dtype=np.uint8), y=[0] * 100)
    assert file.stat().st_size < 10_000
    monkeypatch.setattr(untrusted, "MOST_FILE_BYTES", 10**6)
    with pytest.raises(DataError, match="claim"):
        load_pack(file)


def test_a_header_that_lies_about_its_shape(tmp_path: Path) -> None:
    header = io.BytesIO()
    fields = {"descr": "|u1", "fortran_order": False, "shape": (2**40, 32, 32, 3)}
    np.lib.format.write_array_header_1_0(header, fields)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(10))
    with pytest.raises(DataError, match="readable"):
        load_pack(tmp_path / "a.npz")


def test_the_embedded_sample() -> None:
    data = embedded()
    assert len(data) == 200
    assert data.shape == (3, 32, 32)
    assert data.labels.bincount().tolist() == [20] * 10
    assert data.class_names[0] == "airplane"


def test_the_embedded_sample_is_in_the_test_set(packs: Path) -> None:
    sample, test = embedded(), load(packs / "cifar10_test.npz")
    with np.load(packs / "cifar10_sample200.npz") as arrays:
        index = arrays["index"]
    assert torch.equal(sample.images, test.subset(index.tolist()).images)
    assert torch.equal(sample.labels, test.labels[index])


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("fashion_mnist_sample1000", (1, 28, 28), 10),
        ("imagenet_sample500_224", (3, 224, 224), 1000),
    ],
)
def test_other_packs(name: str, shape: tuple[int, ...], classes: int, packs: Path) -> None:
    data = load(packs / f"{name}.npz")
    assert data.shape == shape
    assert data.classes == classes
