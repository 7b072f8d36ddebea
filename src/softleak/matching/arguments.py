"""Checks of what a caller passes, and the expansion of one for all to one for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from softleak.errors import OptionError

Each = TypeVar("Each")


def expect(given: object, kind: type, example: str) -> None:
    """Raise ``OptionError`` unless something is an instance of a kind, and not a class."""
    if isinstance(given, type):
        raise OptionError(f"expected {example}, got the class {given.__name__}")
    if not isinstance(given, kind):
        raise OptionError(f"expected {example}, got {type(given).__name__}")


def one_each(given: Each | Sequence[Each], count: int, what: str) -> list[Each]:
    """Return one for every share, from one for all or a sequence of as many."""
    if not isinstance(given, Sequence):
        return [given] * count
    if len(given) != count:
        raise OptionError(
            f"expected one {what} for all or one for each of {count} shares, got {len(given)}"
        )
    return list(given)


def listed(given: object) -> Sequence[object]:
    """Return a sequence as it is, and anything else as a sequence of one."""
    return given if isinstance(given, Sequence) else [given]
