"""This module loads the English sentences in the package (see files/CREDITS.md)."""

from __future__ import annotations

from importlib import resources


def verses() -> tuple[str, ...]:
    """Return 715 verses of the King James Bible, which is in the public domain."""
    file = resources.files("softleak.data").joinpath("files", "verses.txt")
    return tuple(file.read_text("ascii").splitlines())
