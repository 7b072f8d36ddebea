"""What the README prints is what a new user sees."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{path.name}-{number}")
    for path in DOCS
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_the_examples_run_as_printed(block, tmp_path):
    if "flwr" in block and sys.version_info < (3, 11):
        pytest.skip("Flower wants Python 3.11")
    done = subprocess.run(
        [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
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
