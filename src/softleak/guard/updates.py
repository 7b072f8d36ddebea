"""A client's update: what it received, what it sends back, and the gradient between them.

An update is converted once, where it enters: from two states to a share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor, nn

from softleak.core.errors import ShareError
from softleak.core.local_training import LocalTraining
from softleak.core.share import GradientShare
from softleak.io.names import own_names

Weights = Mapping[str, Tensor]  # weights and buffers by name


def under_own_names(held: Weights, model: nn.Module) -> dict[str, Tensor]:
    """Return arrays under the model's names, which lists of arrays do not carry."""
    names = own_names(held, model)
    return {names[name]: tensor for name, tensor in held.items()}


def step_between(before: Weights, after: Weights, lr: float | None) -> GradientShare:
    """Return the gradient behind two states.

    Args:
        before: the state that the client received.
        after: the state that it sent back.
        lr: its learning rate. If it is None, the gradient is multiplied by an unknown factor.

    Raises:
        ShareError: if the states are not those of one model, or hold NaN or infinity.
    """
    if not after:
        raise ShareError("it sent no arrays, so there is nothing to audit")
    if before.keys() != after.keys():
        odd = sorted(before.keys() ^ after.keys())
        raise ShareError(
            f"it sent {len(after)} arrays under other names than the {len(before)} it received, "
            f"first {odd[0]!r}; is it of this model?"
        )
    _check_alike(before, after)
    share = GradientShare.from_update(before, after, lr=1.0 if lr is None else lr)
    share.check_finite()
    return share


def _check_alike(before: Weights, after: Weights) -> None:
    """Raise ``ShareError`` unless all arrays have the same shapes and kinds of numbers."""
    for name, start in before.items():
        came = after[name]
        if came.shape != start.shape:
            raise ShareError(
                f"the array {name!r} should have shape {tuple(start.shape)}, got "
                f"{tuple(came.shape)}; is it of this model?"
            )
        if came.is_floating_point() != start.is_floating_point():
            raise ShareError(f"the array {name!r} should be {start.dtype}, got {came.dtype}")


@dataclass(frozen=True, eq=False)
class ClientUpdate:
    """One client's step as a share, or the reason why there is none.

    Attributes:
        node: the number of the client's node.
        share: the gradient behind the step; None if it could not be read.
        lr: the learning rate by which the share was divided; None if it is unknown.
        samples: the number of samples that the client says it used.
        reason: why there is no share.
        client: how the client trained; None if nothing but its learning rate is known.
        received: the weights and buffers that the client was sent.
    """

    node: int
    share: GradientShare | None = None
    lr: float | None = None
    samples: int | None = None
    reason: str = ""
    client: LocalTraining | None = None
    received: Weights = field(default_factory=dict)

    def sending(self, after: Weights, samples: int | None = None) -> ClientUpdate:
        """Return the update of a client that sends this state, or some arrays of it.

        Raises:
            ShareError: if this is not a step from the state that the client was sent.
        """
        told = {name: self.received[name] for name in after if name in self.received}
        return replace(self, share=step_between(told, after, self.lr), samples=samples)

    def under_sent_names(self, share: GradientShare, model: nn.Module) -> GradientShare:
        """Return a share under the names of the arrays that were sent, not the model's own."""
        names = own_names(self.share or {}, model)
        return share.renamed({own: name for name, own in names.items()})

    def after(self, share: GradientShare, model: nn.Module) -> dict[str, Tensor]:
        """Return the received state after one step of another share.

        Running statistics and counters, which a share does not hold, stay as they were received.
        """
        size, told = 1.0 if self.lr is None else self.lr, self.under_sent_names(share, model)
        moved = {n: t.double() - size * told[n] for n, t in self.received.items() if n in told}
        return {name: moved.get(name, t).to(t.dtype) for name, t in self.received.items()}

    @cached_property
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

    state: Weights
    updates: tuple[ClientUpdate, ...]

    def first(self, count: int) -> Group:
        """Return the group with its first few updates that hold a share."""
        return Group(self.state, tuple(u for u in self.updates if u.share is not None)[:count])
