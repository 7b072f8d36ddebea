"""This module holds a client's own step: what it received, and what it is about to send."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from softleak.integrations.guarding.states import State, own_parameters, state_after, step_between
from softleak.local_training import LocalTraining
from softleak.share import GradientShare


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

    before: State
    share: GradientShare
    lr: float | None
    samples: int | None
    names: dict[str, str]
    received: State
    client: LocalTraining | None = None

    @classmethod
    def of(
        cls, before: State, after: State, lr: float | None, samples: int | None, model: nn.Module
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
