"""This module writes labels, numbers and lists as people do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class TextLimits:
    """These limits keep sentences short."""

    entries: int = 3  # entries of a label that are listed
    smallest: float = 5e-4  # entries below this are not worth a place
    classes: int = 20  # classes that are listed
    samples: int = 8  # samples of an update whose labels are listed
    words: int = 60  # words of a text without their places that are listed


TEXT = TextLimits()


FAILED = "this attack did not succeed"


def class_name(index: int, names: Sequence[str]) -> str:
    """Return the name of a class, or its number."""
    return names[index] if index < len(names) else f"class {index}"


def in_a_line(y: Tensor, names: Sequence[str]) -> str:
    """Return a label short enough for a table: its two leading entries at most."""
    telling = int((y - y.min() > TEXT.smallest).sum())
    return describe(y, names, telling if telling <= 2 else 1)


def describe(y: Tensor, names: Sequence[str], most: int = TEXT.entries) -> str:
    """Return the largest entries of a label by name, and how many others share the rest."""
    values, indices = y.sort(descending=True)
    level = float(values[-1])
    top = [(float(v), int(i)) for v, i in zip(values, indices, strict=True)][:most]
    parts = [f"{class_name(i, names)} {v:.4f}" for v, i in top if v - level > TEXT.smallest]
    rest = len(y) - len(parts)
    if not parts:
        return f"all {len(y)} classes alike"
    others = rest > 0 and float(values[len(parts)]) > TEXT.smallest
    return ", ".join(parts) + (f", {rest} others" if others else "")


def written(value: float) -> str:
    """Return a number as people write it: three digits, a power of ten if it is small or large."""
    if not math.isfinite(value):
        return "∞"
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.3g}"
    digits, _, power = f"{value:.1e}".partition("e")
    raised = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{digits}·10{raised}"


def listed(parts: Sequence[str]) -> str:
    """Return the parts as a list in a sentence: ``a, b and c``."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
