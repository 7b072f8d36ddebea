"""What the README prints is what a new user sees."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{path.name}-{number}")
    for path in DOCS
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_the_examples_run_as_printed(block, tmp_path, forks):
    if "flwr" in block and sys.version_info < (3, 11):
        pytest.skip("Flower wants Python 3.11")
    done = forks.run(block, tmp_path)
    assert done.returncode == 0, done.stderr
    printed = re.findall(r"^# ?> (.*)$", block, re.MULTILINE)
    assert [line.strip() for line in done.stdout.splitlines()] == [p.strip() for p in printed]


def test_links_lead_somewhere():
    for path in DOCS:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_no_document_says_safe():
    for path in DOCS:
        assert not re.search(r"\bsafe\b(?!\")", path.read_text().replace('"safe"', "")), path.name


def test_modules_named_by_the_architecture_exist():
    source = ROOT / "src" / "softleak"
    named = re.findall(r"`([\w/]+\.py)`", (ROOT / "docs" / "architecture.md").read_text())
    assert len(named) >= 10
    for path in named:
        at = ROOT if path.startswith("tests/") else source
        assert (at / path).exists(), path


def test_modules_in_the_picture_of_the_architecture_exist_in_their_rooms():
    source = ROOT / "src" / "softleak"
    room, seen = source, []
    for kind, text in re.findall(
        r'class="(title|mono)"[^>]*>([^<]+)<', (ROOT / "docs" / "architecture.svg").read_text()
    ):
        if kind == "title":
            named = re.match(r"(\w+)/", text)
            room = source / named[1] if named else source
            assert room.is_dir(), text
            seen.append(room.name)
        else:
            for name in re.findall(r"[\w/]+(?:\.py|/)", text):
                assert (room / name).exists(), f"{room.name}: {name}"
    rooms = {path.parent.name for path in source.glob("*/__init__.py")}
    assert rooms - {"core", "numerics", "integrations"} <= set(seen)
