"""Norm clipping multiplies a share by an unknown factor and leaves its direction as it was."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from softleak.defenses.defense import positive
from softleak.share import GradientShare

TOUCHED = 1 - 1e-6  # of the limit: a share of this length was clipped


@dataclass(frozen=True)
class Clip:
    """This scales the whole share down to an L2 norm of at most ``norm``."""

    norm: float
    random: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive(self.norm, "the largest norm")

    def __call__(self, share: GradientShare) -> GradientShare:
        norm = share.norm()
        return share if norm <= self.norm else share.scaled(self.norm / norm)

    def public(self, sent: GradientShare) -> GradientShare:
        """Return the share at unknown scale if it is as long as the limit, so that it was clipped.

        The receiver knows the limit.
        """
        clipped = sent.norm() >= TOUCHED * self.norm
        return replace(sent, scale="unknown") if clipped else sent
