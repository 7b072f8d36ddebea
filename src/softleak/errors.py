"""One root exception: every caller's mistake says what was expected, what came and what to do."""

from __future__ import annotations


class SoftleakError(Exception):
    """Root of everything softleak raises on purpose."""


class ModelError(SoftleakError):
    """The model cannot be audited as given: no linear head, a forward pass that fails, …"""


class HeadNotFound(ModelError):
    """No final ``nn.Linear`` produces the model's logits."""


class ShareError(SoftleakError):
    """The share does not fit the model, or holds values no gradient can hold."""


class MissingGradient(ShareError):
    """The share lacks the head's weight gradient, without which nothing can be said."""


class NonFinite(ShareError):
    """The share holds NaN or infinity."""


class FileError(SoftleakError):
    """A file is missing, truncated, of another format, or not to be trusted."""


class LabelError(SoftleakError):
    """A label or a label family that does not fit the number of classes."""


class DataError(SoftleakError):
    """A data set that cannot be read, or does not hold what was asked for."""


class MissingExtra(SoftleakError, ImportError):
    """An optional library is not installed; the message names the extra that brings it."""


class OptionError(SoftleakError):
    """A setting that makes no sense: of a defence, an objective, an optimiser."""


def in_a_line(error: Exception) -> str:
    """The first line of what an error says, or its kind if it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
