"""A client's step as an update: as the server sees it, and as the client is about to send it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flwr.app import Message
from torch import nn

from softleak.integrations.flower import arrays as records
from softleak.integrations.flower.arrays import State
from softleak.local_training import LocalTraining
from softleak.naming import own_names
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


@dataclass(frozen=True, eq=False)
class OwnStep:
    """What a client received and is about to send, and the share between them.

    Attributes:
        key: the key of the arrays in the reply.
        before: the state that the client received.
        share: the gradient behind the step, under the model's parameter names.
        lr: the learning rate by which the share was divided; None if it is unknown.
        samples: the number of samples that the client says it used.
        names: the model's name of each array.
    """

    key: str
    before: State
    share: GradientShare
    lr: float | None
    samples: int | None
    names: dict[str, str]

    @classmethod
    def of(cls, before: State, reply: Message, lr: float | None, model: nn.Module) -> OwnStep:
        """Return the step between a received state and a reply.

        Args:
            before: the state that the client received.
            reply: what it is about to send.
            lr: its learning rate; None if it is unknown.
            model: the architecture, whose parameter names are used.

        Raises:
            ShareError: if the reply is not a step of this model.
        """
        key, record = records.only_arrays(reply.content)
        share = records.step_between(before, records.tensors(record), lr)
        names = own_names(share, model)
        own = share.renamed(names)
        kept = own.without(*(own.keys() - dict(model.named_parameters()).keys()))
        return cls(key, before, kept, lr, records.claimed_samples(reply.content), names)

    def replace_in(self, reply: Message, share: GradientShare) -> None:
        """Put the state after a step of another share into the reply."""
        _, record = records.only_arrays(reply.content)
        size = 1.0 if self.lr is None else self.lr
        sent = share.renamed({own: name for name, own in self.names.items()})
        reply.content[self.key] = records.record_after(record, self.before, sent, size)
