"""This module computes fingerprints of files, by which a result says what it came from."""

from __future__ import annotations

import hashlib
from pathlib import Path

from softleak.tensor_files.load_save import parts

HASHED_AT_ONCE = 1 << 20  # bytes held in memory while a file is hashed


def fingerprint(path: Path) -> str:
    """Return the SHA-256 of a file, or of the files of a sharded one, one after the other."""
    digest = hashlib.sha256()
    for part in parts(path):
        with part.open("rb") as file:
            while block := file.read(HASHED_AT_ONCE):
                digest.update(block)
    return digest.hexdigest()
