"""One update under audit: what a client sent, together with the model that it was sent for.

The gradient that its numbers mean, and the singular pair of that at the head, are computed when
they are first asked for, and remembered by the share, so two updates of one share agree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from torch import Tensor

from softleak.core.factors import Factors, factor
from softleak.core.share import GradientShare, LocalTraining, Unknown
from softleak.core.subject import Subject

Number = TypeVar("Number", float, Tensor)


@dataclass(frozen=True)
class SgdSteps:
    """SGD with a known learning rate, as numbers."""

    steps: int
    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    rates: tuple[float, ...] = ()  # the rate of each step over ``lr``; none if it stays

    @classmethod
    def of(cls, training: LocalTraining) -> SgdSteps | None:
        """Return the recipe of a client with one sample; None if it is not SGD, or not known."""
        steps = training.single_steps
        lr, momentum, decay = training.lr, training.momentum, training.weight_decay
        if training.optimiser != "sgd" or steps is None:
            return None
        if steps == 1 and not training.nesterov:
            momentum = 0.0  # the first step has no momentum yet
        if isinstance(lr, Unknown) or lr is None:
            return None
        if isinstance(momentum, Unknown) or isinstance(decay, Unknown):
            return None
        return cls(steps, lr, momentum, training.dampening, decay, training.nesterov)

    def at(self, step: int) -> SgdSteps:
        """Return the recipe with the rate of one step."""
        return replace(self, lr=self.lr * self.rates[step], rates=()) if self.rates else self

    def step(self, moved: Number, memory: Number | None, slope: Number) -> tuple[Number, Number]:
        """Return how far ``before − now`` has got after one more step, and the momentum.

        ``moved`` is that so far, without the decay of ``before`` itself; there is no ``memory``
        before the first step; ``slope`` is the gradient of the loss.
        """
        if self.weight_decay:
            slope = slope - self.weight_decay * moved
        if not self.momentum:  # dampening is of the momentum, and without one there is none
            return moved + self.lr * slope, slope
        memory = slope if memory is None else self.momentum * memory + (1 - self.dampening) * slope
        ahead = slope + self.momentum * memory if self.nesterov else memory
        return moved + self.lr * ahead, memory

    def step_in_place(self, moved: Tensor, memory: Tensor | None, slope: Tensor) -> Tensor:
        """Take one more ``step``, write it to ``moved``, and return the momentum.

        Memory and slope are overwritten, which saves most of the time where they are large.
        """
        if self.weight_decay:
            slope.sub_(moved, alpha=self.weight_decay)
        if not self.momentum:
            moved.add_(slope, alpha=self.lr)
            return slope
        if memory is not None:
            memory = memory.mul_(self.momentum).add_(slope, alpha=1 - self.dampening)
        else:
            memory = slope.clone() if self.nesterov else slope
        if self.nesterov:
            moved.add_(slope, alpha=self.lr).add_(memory, alpha=self.lr * self.momentum)
        else:
            moved.add_(memory, alpha=self.lr)
        return memory

    @cached_property
    def kept(self) -> tuple[float, ...]:
        """Return the part of the first weights that is left before each step, and at the end."""
        moved, memory, found = -1.0, None, [1.0]
        for k in range(self.steps):
            moved, memory = self.at(k).step(moved, memory, 0.0)
            found.append(-moved)
        return tuple(found)

    @cached_property
    def weights(self) -> tuple[float, ...]:
        """Return how much the gradient of each step counts in the update."""
        moved = [0.0] * self.steps
        for one in range(self.steps):
            memory = None
            for k in range(self.steps):
                moved[one], memory = self.at(k).step(moved[one], memory, float(k == one))
        return tuple(moved)

    @property
    def total(self) -> float:
        """Return ``κ``, the sum of the weights of all steps."""
        return sum(self.weights)


def as_gradient(subject: Subject, share: GradientShare) -> GradientShare:
    """Return the gradient that a share means, which the share remembers.

    A share that is a gradient means itself. Of SGD with a known learning rate it is the mean
    gradient of all steps; of one step, the gradient itself. Of any other training it is
    ``before − after``, taken for a gradient of unknown scale.
    """
    if share.made_by is None:
        return share
    recipe = SgdSteps.of(share.made_by)
    if recipe is None:
        return share.once(as_gradient, lambda: replace(share, made_by=None, scale="unknown"))
    return share.once((as_gradient, subject), lambda: mean_gradient(subject, share, recipe))


def mean_gradient(subject: Subject, share: GradientShare, recipe: SgdSteps) -> GradientShare:
    """Return the weighted mean of the gradients of all steps: of one step, the gradient itself."""
    lost, total = 1 - recipe.kept[-1], recipe.total

    def undo(name: str, update: Tensor) -> Tensor:
        weight = subject.parameters.get(name)
        if weight is None or not lost or not update.any():
            return update.double() / total
        # What was not trained did not decay either: an update of zeros stays one.
        return (update.double() - lost * weight.detach().to(update.device).double()) / total

    rounding = {name: error / total for name, error in share.rounding.items()}
    changed = {name: undo(name, update) for name, update in share.items()}
    return replace(share, gradients=changed, rounding=rounding, made_by=None)


def mean_of_head(subject: Subject, share: GradientShare, recipe: SgdSteps) -> GradientShare:
    """Return the mean gradient of the head alone, which costs far less than that of all layers."""
    own = (subject.head.weight_name, subject.head.bias_name)
    return mean_gradient(subject, share.without(*(n for n in share if n not in own)), recipe)


@dataclass(frozen=True, eq=False)
class Update:
    """A share with the subject it belongs to."""

    subject: Subject  # the model, at the weights that the client was sent
    share: GradientShare  # what the client sent

    @property
    def client(self) -> LocalTraining | None:
        """Return how the client trained, as the share states it; None for a gradient."""
        return self.share.made_by

    @property
    def gradient(self) -> GradientShare:
        """Return the gradient that the share means: see ``as_gradient``."""
        return as_gradient(self.subject, self.share)

    @property
    def factors(self) -> Factors:
        """Return the singular pair of ``gradient`` at the head; raises what ``factor`` raises."""
        return factor(self.subject.head, [self.gradient])

    def sending(self, share: GradientShare) -> Update:
        """Return the update with another share for the same model, as a defence changes it."""
        return replace(self, share=share)
