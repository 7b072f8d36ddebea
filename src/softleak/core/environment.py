"""What a result depends on besides its inputs."""

from __future__ import annotations

import platform
from datetime import datetime, timezone
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from softleak._version import __version__


def code() -> str:
    """Return the first twelve hexadecimal digits of ``code_digest``."""
    return code_digest()[:12]


@cache
def code_digest() -> str:
    """Return the SHA-256 over the package's own source files, in hexadecimal digits."""
    folder, digest = Path(__file__).parents[1], sha256()
    for path in sorted(folder.rglob("*.py")):
        source = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(source)}\n".encode() + source)
    return digest.hexdigest()


def now() -> str:
    """Return the time in UTC, to the second, as ISO 8601 writes it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def versions() -> tuple[tuple[str, str], ...]:
    """Return name and version of everything that computes. It does not import torch."""
    return (
        ("softleak", __version__), ("torch", version("torch")), ("numpy", version("numpy")),
        ("safetensors", version("safetensors")), ("Python", platform.python_version()),
        ("system", f"{platform.system()} {platform.machine()}"),
    )  # fmt: skip
