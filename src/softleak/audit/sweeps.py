"""The defences an audit tries, from weak to strong, and what their attacker knows of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from softleak.audit.run import Options
from softleak.defenses import Cast, Clip, Defense, GaussianNoise, Int8, LaplaceNoise, Prune
from softleak.share import GradientShare

TOUCHED = 1 - 1e-6  # of the largest norm: a share this long was clipped


@dataclass(frozen=True)
class Sweep:
    """A defence as a function of one setting, and settings from the weakest to the strongest.

    ``make`` takes a setting and a seed. Without settings the defence has only one.
    """

    name: str
    unit: str
    make: Callable[[float, int], Defense]
    settings: tuple[float, ...] = ()

    @property
    def every(self) -> tuple[float, ...]:
        """The settings to try."""
        return self.settings or (1.0,)

    @property
    def random(self) -> bool:
        """Whether seeds make a difference."""
        return isinstance(self.make(self.every[0], 0), GaussianNoise | LaplaceNoise)


def sweeps(norm: float) -> tuple[Sweep, ...]:
    """What is tried on shares of this L2 norm."""
    noise = tuple(10.0**power for power in range(-5, 1))
    kept = (1.0, 0.99, 0.9, 0.5, 0.2, 0.05, 0.01)
    norms = tuple(norm * part for part in (2.0, 0.3, 1e-1, 1e-2, 1e-3, 1e-4))
    std = "standard deviation"
    return (
        Sweep("Gaussian noise", std, lambda s, seed: GaussianNoise(s, seed), noise),
        Sweep("Laplace noise", std, lambda s, seed: LaplaceNoise(s, seed), noise),
        Sweep("Clipping", "largest norm", lambda s, _: Clip(s), norms),
        Sweep("Pruning", "part kept", lambda s, _: Prune(s), kept),
        Sweep("float16", "", lambda *_: Cast(torch.float16)),
        Sweep("bfloat16", "", lambda *_: Cast(torch.bfloat16)),
        Sweep("int8", "", lambda *_: Int8()),
    )


def known_to_the_attacker(
    defense: Defense, share: GradientShare, options: Options
) -> tuple[GradientShare, GradientShare, Options]:
    """What is sent, the same with its errors declared, and how it is attacked.

    The defence is public: a share as long as the limit was clipped, levels have a width.
    """
    sent = defense(share)
    if isinstance(defense, Clip) and sent.norm() >= TOUCHED * defense.norm:
        return sent, sent, replace(options, scale="unknown")
    declared = replace(defense, declared=True) if isinstance(defense, Int8) else None
    return sent, declared(share) if declared else sent, options
