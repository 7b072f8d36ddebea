"""What the audit of a round is given: clients' steps as shares, and the state they start from."""

from __future__ import annotations

from dataclasses import dataclass

from softleak.integrations.flower.arrays import State
from softleak.share import GradientShare


@dataclass(frozen=True, eq=False)
class Update:
    """One client's step as a share, or the reason why it is none."""

    node: int
    share: GradientShare | None = None
    lr: float | None = None  # by which the share was divided; None if it is not known
    samples: int | None = None  # as the client says
    reason: str = ""

    @property
    def scale_known(self) -> bool:
        """Whether the share is the gradient itself, and not a multiple of it."""
        return self.lr is not None


@dataclass(frozen=True, eq=False)
class Group:
    """Clients that were sent the same state: steps from it."""

    state: State
    updates: tuple[Update, ...]

    def first(self, count: int) -> Group:
        """The first few of which there is a share."""
        return Group(self.state, tuple(u for u in self.updates if u.share is not None)[:count])
