"""The package names what it needs, and a source distribution holds what its tests need."""

from __future__ import annotations

import re
from pathlib import Path

from softleak.cli.doctor import EXTRAS

ROOT = Path(__file__).resolve().parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text()


def test_every_extra_that_the_doctor_names_exists_and_is_in_all():
    every = re.search(r'^all = \["softleak\[(.*)\]"\]$', PROJECT, re.MULTILINE)[1].split(",")
    for extra in EXTRAS:
        assert re.search(rf"^{extra} = \[", PROJECT, re.MULTILINE), extra
        assert extra in every


def test_the_source_distribution_holds_every_folder():
    manifest = (ROOT / "MANIFEST.in").read_text().splitlines()
    for folder in ("benchmarks", "docs", "examples", "src", "tests", "tools"):
        assert f"graft {folder}" in manifest
        assert (ROOT / folder).is_dir()


def test_no_hint_names_a_package_that_is_not_published():
    for path in (ROOT / "src" / "softleak").rglob("*.py"):
        assert "pip install 'softleak" not in path.read_text(), path
