"""This module holds what a guard may do to an update before it adds noise: prune it, clip it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from softleak.defenses import Clip, Prune
from softleak.share import GradientShare


@dataclass(frozen=True)
class Treatment:
    """This shortens an update, and leaves out its smaller entries.

    Attributes:
        kept: the part of each gradient's entries that is sent, the largest ones.
        length: the length that is left of the update. The receiver then no longer knows its scale.
    """

    kept: float = 1.0
    length: float = 1.0

    @property
    def prunes(self) -> bool:
        """Whether some entries are not sent."""
        return self.kept < 1

    @property
    def clips(self) -> bool:
        """Whether the update is shortened."""
        return self.length < 1

    def __call__(self, share: GradientShare) -> GradientShare:
        """Return the share shortened and pruned."""
        clipped = Clip(self.length * share.norm())(share) if self.clips and share.norm() else share
        return Prune(self.kept)(clipped) if self.prunes else clipped

    def views(self, sent: GradientShare, noise: float) -> list[GradientShare]:
        """Return what was sent as its receivers may read it, each of whom is an attacker.

        One takes it as it is. If it was pruned, another knows that what is missing is smaller than
        what is there, and trusts each gradient accordingly.

        Args:
            sent: what was sent.
            noise: the standard deviation of the noise on what was sent.
        """
        if not self.prunes:
            return [sent]
        errors = {n: math.hypot(noise, sent.noise(n), _missing(g)) for n, g in sent.items()}
        return [sent, replace(sent, rounding=errors)]

    @property
    def words(self) -> str:
        """Return the treatment as it continues a sentence; empty if it does nothing."""
        said = f" on the largest {self.kept:.0%} of the entries" if self.prunes else ""
        return f"{said}, clipped to {self.length:.0%} of its length" if self.clips else said


PLAIN = Treatment()
# What a guard tries, each with noise. A new treatment is a line here.
TREATMENTS = (
    PLAIN,
    Treatment(kept=0.3),
    Treatment(kept=0.1),
    Treatment(kept=0.01),
    Treatment(length=0.5),
)


def _missing(g: Tensor) -> float:
    """Return the root mean square over all entries of those that are missing, at most."""
    kept = g[g != 0].abs()
    if not kept.numel():
        return 0.0
    return float(kept.min()) * math.sqrt((1 - kept.numel() / g.numel()) / 3)
