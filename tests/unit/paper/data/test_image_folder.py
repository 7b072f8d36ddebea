from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from softleak.core.errors import DataError, MissingExtra
from softleak.paper.data import load, load_folder

Image = pytest.importorskip("PIL.Image")


def write(root: Path, name: str, size: tuple[int, int] = (5, 4), level: int = 9) -> None:
    file = root / name
    file.parent.mkdir(exist_ok=True)
    Image.fromarray(np.full((size[1], size[0], 3), level, dtype=np.uint8)).save(file)


def test_classes_are_the_subfolders_in_name_order(tmp_path: Path) -> None:
    write(tmp_path, "dog/b.png", level=2)
    write(tmp_path, "dog/a.PNG", level=1)
    write(tmp_path, "cat/z.bmp", level=0)
    (tmp_path / "dog" / "notes.txt").write_text("not an image")
    (tmp_path / "empty").mkdir()
    data = load(tmp_path)
    assert data.class_names == ("cat", "dog")
    assert data.labels.tolist() == [0, 1, 1]
    assert data.images[:, 0, 0, 0].tolist() == [0, 1, 2]
    assert data.shape == (3, 4, 5)


def test_grey_and_transparent_images_become_rgb(tmp_path: Path) -> None:
    for mode in ("L", "RGBA", "P"):
        file = tmp_path / mode / "a.png"
        file.parent.mkdir()
        Image.new(mode, (3, 3)).save(file)
    assert load_folder(tmp_path).images.shape == (3, 3, 3, 3)


def test_different_sizes_need_a_size(tmp_path: Path) -> None:
    write(tmp_path, "cat/a.png", (5, 4))
    write(tmp_path, "cat/b.png", (8, 8))
    with pytest.raises(DataError, match="4x5, 8x8"):
        load(tmp_path)
    data = load(tmp_path, size=6)
    assert data.images.shape == (2, 6, 6, 3)
    assert torch.equal(data.images, torch.full_like(data.images, 9))


def test_unreadable_images_are_named(tmp_path: Path) -> None:
    write(tmp_path, "cat/a.png")
    (tmp_path / "cat" / "b.png").write_bytes((tmp_path / "cat" / "a.png").read_bytes()[:40])
    with pytest.raises(DataError, match=r"b\.png"):
        load(tmp_path)


def test_folders_without_images(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="one subfolder for each class"):
        load(tmp_path)
    with pytest.raises(DataError, match="No folder"):
        load_folder(tmp_path / "absent")


def test_pillow_is_asked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "cat/a.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r"'\.\[images\]'"):
        load(tmp_path)
