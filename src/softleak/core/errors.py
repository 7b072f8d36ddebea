"""The exceptions that softleak raises on purpose.

Each message says what was expected, what came and what to do.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


class SoftleakError(Exception):
    """The root of everything softleak raises on purpose."""


class ModelError(SoftleakError):
    """The model cannot be audited as given, for example because it has no linear head."""


class HeadNotFound(ModelError):
    """No final ``nn.Linear`` produces the model's logits."""


class ShareError(SoftleakError):
    """The share does not fit the model, or holds values no gradient can hold."""


class MissingGradient(ShareError):
    """The share lacks the gradient of the head's weight, which every attack needs."""


class NonFinite(ShareError):
    """The share holds NaN or infinity."""


class FileError(SoftleakError):
    """A file is missing, truncated, of another format, or not to be trusted."""


class LabelError(SoftleakError):
    """A label or a label family does not fit the number of classes."""


class DataError(SoftleakError):
    """A data set cannot be read, or does not hold what was asked for."""


class MissingExtra(SoftleakError, ImportError):
    """An optional library is not installed; the message names the extra that brings it."""


class OptionError(SoftleakError):
    """A setting of a defence, an objective or an optimiser makes no sense."""


class LeakFound(SoftleakError):
    """An audit found what ``raise_for`` was told to stop, or could not attack it."""


def in_a_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra; softleak is not on a package index yet."""
    return f"pip install '.[{extra}]' in a checkout of softleak"


def import_extra(module: str, need: str, extra: str) -> ModuleType:
    """Return a module of an optional library; raises ``MissingExtra`` that says who needs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(f"{need}: {how_to_install(extra)}") from error
