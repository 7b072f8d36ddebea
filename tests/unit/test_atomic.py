from __future__ import annotations

import pytest

from softleak.core.errors import FileError
from softleak.io.atomic import make_folder, replacing, write_text


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "page.html"
    write_text(path, "old")
    write_text(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "page.html"
    write_text(path, "old")

    def fail() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_is_named(tmp_path):
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot make the folder"):
        make_folder(tmp_path / "file" / "inside")
    with pytest.raises(FileError, match="expected a folder"):
        write_text(tmp_path / "none" / "page.html", "")
