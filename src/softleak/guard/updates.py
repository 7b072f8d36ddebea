"""A client's own step: what it received, and what it is about to send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

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


def own_parameters(share: GradientShare, model: nn.Module) -> tuple[GradientShare, dict[str, str]]:
    """Return a share under the model's parameter names, and the model's name of each array.

    Running statistics are left out, because they are no gradients.

    Args:
        share: the gradient behind a step, under the names of the arrays that were sent.
        model: the architecture.
    """
    names = own_names(share, model)
    own = share.renamed(names)
    return own.without(*(own.keys() - dict(model.named_parameters()).keys())), names


def state_after(before: Weights, share: GradientShare, lr: float | None) -> dict[str, Tensor]:
    """Return the received state after one step of a share, under the same names.

    Running statistics and counters, which a share does not hold, stay as they were received.

    Args:
        before: the state that the client received.
        share: the gradient of the step.
        lr: the size of the step; 1 if it is not known.
    """
    size = 1.0 if lr is None else lr
    moved = {n: start.double() - size * share[n] for n, start in before.items() if n in share}
    return {name: moved.get(name, start).to(start.dtype) for name, start in before.items()}


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

    state: Weights
    updates: tuple[Update, ...]

    def first(self, count: int) -> Group:
        """Return the group with its first few updates that hold a share."""
        return Group(self.state, tuple(u for u in self.updates if u.share is not None)[:count])


@dataclass(frozen=True, eq=False)
class OwnStep:
    """What a client received and is about to send, and the share between them.

    Attributes:
        before: what the client received of the arrays that it sends.
        share: the gradient behind the step, under the model's parameter names.
        lr: the learning rate by which the share was divided; None if it is unknown.
        samples: the number of samples that the client says it used.
        names: the model's name of each array.
        received: all that the client received, from which the model is made.
        client: how the client trained; None if nothing but its learning rate is known.
    """

    before: Weights
    share: GradientShare
    lr: float | None
    samples: int | None
    names: dict[str, str]
    received: Weights
    client: LocalTraining | None = None

    @classmethod
    def of(
        cls,
        before: Weights,
        after: Weights,
        lr: float | None,
        samples: int | None,
        model: nn.Module,
    ) -> OwnStep:
        """Return the step between a received state and the one that is about to be sent.

        Args:
            before: the state that the client received.
            after: what it is about to send of it; the rest is withheld.
            lr: its learning rate; None if it is unknown.
            samples: the number of samples that it says it used; None if it does not say.
            model: the architecture, whose parameter names are used.

        Raises:
            ShareError: if this is not a step of this model.
        """
        told = {name: before[name] for name in after if name in before}
        share, names = own_parameters(step_between(told, after, lr), model)
        return cls(told, share, lr, samples, names, before)

    def after(self, share: GradientShare) -> dict[str, Tensor]:
        """Return the state after a step of another share, under the names that were received."""
        sent = share.renamed({own: name for name, own in self.names.items()})
        return state_after(self.before, sent, self.lr)
