"""The defences that an audit tries, from weak to strong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from softleak.defenses import (
    Cast,
    Clip,
    Defense,
    GaussianNoise,
    Int8,
    LaplaceNoise,
    Prune,
    Withhold,
    is_random,
)


@dataclass(frozen=True)
class Sweep:
    """This holds a defence as a function of one setting, and settings from weak to strong.

    ``make`` takes a setting and a seed. Without settings the defence has only one.
    """

    name: str
    unit: str
    make: Callable[[float, int], Defense]
    settings: tuple[float, ...] = ()

    @property
    def every(self) -> tuple[float, ...]:
        """Return the settings to try."""
        return self.settings or (1.0,)

    @property
    def random(self) -> bool:
        """Return whether seeds make a difference."""
        return is_random(self.make(self.every[0], 0))


STD = "standard deviation"
NOISE_LEVELS = tuple(10.0**power for power in range(-5, 1))
PARTS_KEPT = (1.0, 0.99, 0.9, 0.5, 0.2, 0.05, 0.01)
PARTS_OF_NORM = (2.0, 0.3, 1e-1, 1e-2, 1e-3, 1e-4)

# What is tried on shares of a given L2 norm. A new defence is a line here.
SWEEPS: list[Callable[[float], Sweep]] = [
    lambda _: Sweep("Gaussian noise", STD, lambda s, seed: GaussianNoise(s, seed), NOISE_LEVELS),
    lambda _: Sweep("Laplace noise", STD, lambda s, seed: LaplaceNoise(s, seed), NOISE_LEVELS),
    lambda norm: Sweep(
        "Clipping", "largest norm", lambda s, _: Clip(s), tuple(norm * p for p in PARTS_OF_NORM)
    ),
    lambda _: Sweep("Pruning", "part kept", lambda s, _: Prune(s), PARTS_KEPT),
    lambda _: Sweep("float16", "", lambda *_: Cast(torch.float16)),
    lambda _: Sweep("bfloat16", "", lambda *_: Cast(torch.bfloat16)),
    lambda _: Sweep("int8", "", lambda *_: Int8()),
]


def sweeps(norm: float, embeddings: tuple[str, ...] = ()) -> tuple[Sweep, ...]:
    """Return what is tried on shares of this L2 norm.

    Args:
        norm: the L2 norm.
        embeddings: the parameters that tell an input by themselves; freezing them is tried too.
    """
    frozen = [Sweep("Freezing the embeddings", "", lambda *_: Withhold(embeddings))]
    return (*(make(norm) for make in SWEEPS), *(frozen if embeddings else ()))
