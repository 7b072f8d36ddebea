"""The comparison of two answers, with a tolerance that fits each number."""

from __future__ import annotations

import math

HALF_AN_ORDER = 0.5
MAGNITUDES = {"error", "feature_error", "input_error", "noise", "misfit"}
DECIBELS = {"psnr_predicted", "agreement", "psnr"}
LABELS = {"label", "difference", "interval", "labels"}
NOISY = ("PROBABLE", "GUESS")
TINY = 1e-6  # below this an error is the rounding of the answer itself


def differences(old, new, path: str = "", key: str = "", around: dict | None = None):
    """Yield a line for each place where the new answer is not the old one."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            inner = old if "status" in old else around
            yield from differences(
                old.get(name), new.get(name), f"{path}.{name}", _kind(name, key, old), inner
            )
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from differences(a, b, f"{path}[{i}]", key, around)
    elif not _same(old, new, key, around or {}):
        yield f"{path}: {old!r} was recorded, {new!r} was found"


def _kind(name: str, parent: str, held: dict) -> str:
    """Return what a number is: evidence that fails and an assumption that holds leave rounding."""
    failed = name in ("scalar", "error", "misfit") and held.get("holds") is False
    return "loose" if failed or (name == "number" and held.get("state") == "holds") else name


def _same(old, new, key: str, around: dict) -> bool:
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (old, new))
    if not numeric or (isinstance(old, int) and isinstance(new, int)):
        return old == new
    if key == "loose":
        return True
    if key in MAGNITUDES:
        return _alike(old, new)
    if key in DECIBELS:
        return abs(old - new) <= 20 * HALF_AN_ORDER
    noisy = around.get("status") in NOISY
    if key in LABELS:
        return abs(old - new) <= (1e-2 if noisy else _label_tolerance(around))
    loose = 1e-2 if noisy else 1e-3
    return math.isclose(old, new, rel_tol=loose, abs_tol=1e-2 if noisy else 1e-4)


def _label_tolerance(around: dict) -> float:
    bound = around.get("error")
    if around.get("status") != "UNIQUE" or not isinstance(bound, float):
        return 1e-4
    return min(1e-4, max(2 * bound, 2e-6))


def _alike(old: float, new: float) -> bool:
    """Return whether two magnitudes agree to half an order, or are both rounding."""
    if max(abs(old), abs(new)) <= TINY:
        return True
    return min(old, new) > 0 and abs(math.log10(old / new)) <= HALF_AN_ORDER
