"""This module freezes parameters: the client trains the others and sends nothing of these."""

from __future__ import annotations

from dataclasses import dataclass

from softleak.share import GradientShare


@dataclass(frozen=True)
class Withhold:
    """This leaves gradients out of a share, as a client does that freezes their parameters."""

    names: tuple[str, ...]

    def __call__(self, share: GradientShare) -> GradientShare:
        """Return the share without the gradients of the frozen parameters."""
        return share.without(*self.names)
