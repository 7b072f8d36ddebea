"""What a result depends on besides its inputs."""

from __future__ import annotations

import platform
from importlib.metadata import version

import torch

from softleak._version import __version__


def versions() -> tuple[tuple[str, str], ...]:
    """Name and version of everything that computes."""
    return (
        ("softleak", __version__),
        ("torch", torch.__version__),
        ("numpy", version("numpy")),
        ("safetensors", version("safetensors")),
        ("Python", platform.python_version()),
        ("system", f"{platform.system()} {platform.machine()}"),
    )
