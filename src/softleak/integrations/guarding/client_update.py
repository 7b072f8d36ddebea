"""This module holds a client's step as an update, and the updates of clients that began alike."""

from __future__ import annotations

from dataclasses import dataclass, replace

from softleak.integrations.guarding.states import State
from softleak.local_training import LocalTraining
from softleak.share import GradientShare


@dataclass(frozen=True, eq=False)
class Update:
    """One client's step as a share, or the reason why there is none.

    Attributes:
        node: the number of the client's node.
        share: the gradient behind the step; None if it could not be read.
        lr: the learning rate by which the share was divided; None if it is unknown.
        samples: the number of samples that the client says it used.
        reason: why there is no share.
        client: how the client trained; None if nothing but its learning rate is known.
    """

    node: int
    share: GradientShare | None = None
    lr: float | None = None
    samples: int | None = None
    reason: str = ""
    client: LocalTraining | None = None

    @property
    def trained(self) -> GradientShare | None:
        """The share as local training made it, where that is known; else the gradient."""
        if self.share is None or self.client is None:
            return self.share
        size = 1.0 if self.lr is None else self.lr
        return replace(self.share.scaled(size), made_by=self.client)

    @property
    def samples_of_steps(self) -> int | None:
        """The number of samples if, by what is said, several steps were taken on several samples.

        None for one sample, for one step, and if it was not said.
        """
        if self.samples is None or self.client is None or self.client.epochs is None:
            return None
        batch = self.client.batch_size or self.samples
        return self.samples if batch < self.samples else None

    @property
    def scale_known(self) -> bool:
        """Whether the share is the gradient itself, and not a multiple of it."""
        return self.lr is not None


@dataclass(frozen=True, eq=False)
class Group:
    """The updates of clients that were sent the same state.

    Attributes:
        state: the weights and buffers that they were sent.
        updates: their steps from there.
    """

    state: State
    updates: tuple[Update, ...]

    def first(self, count: int) -> Group:
        """Return the group with its first few updates that hold a share."""
        return Group(self.state, tuple(u for u in self.updates if u.share is not None)[:count])
