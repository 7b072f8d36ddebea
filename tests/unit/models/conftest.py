"""The folder of data packs, which is not part of the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def packs() -> Path:
    beside = Path(__file__).resolve().parents[3].parent / "shared" / "data"
    folder = Path(os.environ.get("SOFTLEAK_DATA", beside))
    if not folder.is_dir():
        pytest.skip("no data packs: set SOFTLEAK_DATA to their folder")
    return folder
