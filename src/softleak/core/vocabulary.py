"""The words that options, files and reports share. It imports no numerics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from typing import Literal

Precision = Literal["float16", "bfloat16", "tf32", "float32", "float64"]
# Half the spacing of numbers near one: how far rounding moves a number, relative to its size.
ROUNDOFF: Mapping[str, float] = {
    "float16": 2.0**-11, "bfloat16": 2.0**-8, "tf32": 2.0**-11,
    "float32": 2.0**-24, "float64": 2.0**-53,
}  # fmt: skip
LOSS_NAMES = ("ce", "bce", "mse", "next-token")  # that `loss=` and `--loss` take


class State(Enum):
    """What is known of one kind of leak. Only an attack that was carried out can fail."""

    LEAKED = "leaked"
    NO_SUCCESS = "attacked without success"
    NOT_ATTACKED = "not attacked"
    CONTRADICTED = "not attacked: the update contradicts what was stated"

    @classmethod
    def of(cls, found: bool, attacked: bool) -> State:
        """Return the state of a leak that was found or not, and attacked or not."""
        if found:
            return cls.LEAKED
        return cls.NO_SUCCESS if attacked else cls.NOT_ATTACKED

    @property
    def attacked(self) -> bool:
        """Return whether an attack was carried out on assumptions that the numbers allow."""
        return self in (State.LEAKED, State.NO_SUCCESS)


class UpdateKind(Enum):
    """What an update file holds."""

    GRADIENT = "gradient"  # the gradient itself, as the caller states
    DELTA = "delta"  # weights after a step minus those before it
    WEIGHTS = "weights"  # weights after a step


class DefenceGroup(str, Enum):
    """Which defences an audit tries."""

    COMMON = "common"
    DP_SGD = "dp-sgd"
    NVFLARE = "nvflare"


def written(value: float, bare: bool = False) -> str:
    """Return a number as people write it: three digits, a power of ten if it is small or large."""
    if not math.isfinite(value):
        return "∞"
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.3g}"
    digits, _, power = f"{value:.1e}".partition("e")
    raised = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}" if bare and digits == "1.0" else f"{digits}·10{raised}"
