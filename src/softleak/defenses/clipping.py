"""Norm clipping: the share times an unknown factor, its direction unchanged."""

from __future__ import annotations

from dataclasses import dataclass

from softleak.defenses.defense import positive
from softleak.share import GradientShare


@dataclass(frozen=True)
class Clip:
    """Scale the whole share down to an L2 norm of at most ``norm``."""

    norm: float

    def __post_init__(self) -> None:
        positive(self.norm, "the largest norm")

    def __call__(self, share: GradientShare) -> GradientShare:
        norm = share.norm()
        return share if norm <= self.norm else share.scaled(self.norm / norm)
