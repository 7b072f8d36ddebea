from __future__ import annotations

import os
from pathlib import Path

import pytest
import typer

from softleak.cli import audit as jobs
from softleak.cli.audit import carry_out, check_outputs
from softleak.cli.exits import Exit
from softleak.cli.options import Request
from softleak.core.errors import FileError


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder to write in, with a folder and a file."""
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"out": "file"}, "expected a folder for --out, found a file at file"),
        ({"out": "file/deeper"}, "expected a folder at .*file for --out, found a file"),
        ({"sarif": "folder"}, "expected a file for --sarif, found a folder at folder"),
        ({"junit": "folder"}, "expected a file for --junit, found a folder at folder"),
        ({"junit": "file/j.xml"}, "expected a folder at .*file for --junit, found a file"),
        ({"junit": "a.txt", "sarif": "folder/../a.txt"}, "--junit and --sarif would both write"),
        ({"junit": "a", "sarif": "a/b"}, "cannot be a file and the folder"),
        ({"out": "new", "junit": "new"}, "--out would write new/index.html and --junit new"),
        ({"sarif": "folder/audit.json"}, "--out and --sarif would both write"),
        ({"dossier": True, "sarif": "folder/dossier.json"}, "--out and --sarif would both write"),
        ({"share": "file", "sarif": "file"}, "--sarif would replace file, which is read"),
    ],
)
def test_what_cannot_be_written_is_said_at_once(options, words, here):
    paths = {name: v if isinstance(v, bool) else Path(v) for name, v in options.items()}
    with pytest.raises(FileError, match=words):
        check_outputs(Request(**{"out": Path("folder"), **paths}))


def test_a_folder_of_somebody_else_is_refused(here, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(FileError, match="cannot write in folder for --out"):
        check_outputs(Request(out=Path("folder")))


def test_new_folders_and_files_to_replace_are_fine_and_nothing_is_made(here):
    Path("folder/index.html").write_text("an earlier page")
    check_outputs(Request(out=Path("folder"), junit=Path("new/j.xml"), sarif=Path("new/s.sarif")))
    check_outputs(Request(out=Path("a/b/c"), junit=Path("a/b/c/j.xml"), sarif=Path("file")))
    assert sorted(path.name for path in here.iterdir()) == ["file", "folder"]


def test_nothing_is_computed_before_the_paths_are_checked(here, monkeypatch, capsys):
    monkeypatch.setattr(jobs, "run", lambda *_: pytest.fail("it was computed"))
    with pytest.raises(typer.Exit) as ended:
        carry_out(Request(out=Path("file"), what_if=True))
    assert ended.value.exit_code == Exit.MISTAKE
    assert "expected a folder for --out" in capsys.readouterr().err
