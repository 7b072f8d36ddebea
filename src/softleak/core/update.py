"""One update under audit: what a client sent, together with the model that it was sent for.

An audit asks the same few things of an update again and again: how the client trained, which
gradient its numbers mean, and the singular pair of that gradient at the head. Each is computed
when it is first asked for, and remembered by the share, so two updates of one share agree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from softleak.core.factors import Factors, factor
from softleak.core.local_training import LocalTraining
from softleak.core.sgd_steps import as_gradient
from softleak.core.share import GradientShare
from softleak.core.subject import Subject


@dataclass(frozen=True, eq=False)
class Update:
    """A share with the subject it belongs to.

    Attributes:
        subject: the model, at the weights that the client was sent.
        share: what the client sent.
    """

    subject: Subject
    share: GradientShare

    @property
    def client(self) -> LocalTraining | None:
        """Return how the client trained, as the share states it; None for a gradient."""
        return self.share.made_by

    @property
    def gradient(self) -> GradientShare:
        """Return the gradient that the share means.

        A share that is a gradient means itself. Of SGD with a known learning rate it is the mean
        gradient of all steps; of one step, the gradient itself. Of any other training it is
        ``before − after``, taken for a gradient of unknown scale.
        """
        return as_gradient(self.subject, self.share)

    @property
    def factors(self) -> Factors:
        """Return the singular pair of ``gradient`` at the head.

        Raises:
            MissingGradient: if the share lacks the gradient of the head's weight.
            ShareError: if that gradient has another shape than the weight.
        """
        return factor(self.subject.head, [self.gradient])

    def sending(self, share: GradientShare) -> Update:
        """Return the update with another share for the same model, as a defence changes it."""
        return replace(self, share=share)
