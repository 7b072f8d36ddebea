"""This module holds the checks of model factories; each raises ModelError for a mistake."""

from __future__ import annotations

from softleak.errors import ModelError


def positive(name: str, value: int) -> None:
    """Raise unless value is at least 1."""
    if value < 1:
        raise ModelError(f"{name} must be 1 or more, got {value}.")


def probability(name: str, value: float) -> None:
    """Raise unless value lies in [0, 1)."""
    if not 0.0 <= value < 1.0:
        raise ModelError(f"{name} must lie in [0, 1), got {value}.")


def divisible(name: str, value: int, by_name: str, by: int) -> None:
    """Raise unless value is a positive multiple of by."""
    positive(name, value)
    positive(by_name, by)
    if value % by:
        raise ModelError(f"{name} must be a multiple of {by_name}, got {value} and {by}.")
