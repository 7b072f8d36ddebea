"""This module is local training as a program: a differentiable function of the client's data.

Every step does what torch.optim does, in its order, so that the result is equal to rounding. It is
written for ``torch.func``: attacks differentiate it by inputs and labels, forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from softleak.errors import ModelError, OptionError
from softleak.forward import logits_of
from softleak.local_training import LocalTraining

Weights = dict[str, Tensor]
Objective = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class OptimiserState:
    """This holds what an optimiser remembers from step to step, by parameter name."""

    taken: int = 0
    first: Mapping[str, Tensor] | None = None  # momentum, or Adam's mean gradient
    second: Mapping[str, Tensor] | None = None  # Adam's mean square


@dataclass(frozen=True, eq=False)
class LocalProgram:
    """This runs a client's steps from given weights.

    Attributes:
        model: the network; its own parameters and buffers are left alone.
        loss: the function of logits (B, C) and soft labels (B, C) that is minimised.
        training: the steps; nothing of it may be unknown.
        frozen: parameters by name that are used but not trained.
        unused: names of parameters whose gradient does not exist; optimisers leave them alone.
    """

    model: nn.Module
    loss: Objective
    training: LocalTraining
    frozen: Mapping[str, Tensor]
    unused: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, model: nn.Module, loss: Objective, training: LocalTraining, unused: Iterable[str] = ()
    ) -> LocalProgram:
        """Return the program of a client that trains what ``requires_grad`` says."""
        if training.unknowns or not training.trains:
            missing = ", ".join(training.unknowns) or "lr"
            raise OptionError(f"a client that runs needs to know its {missing}")
        frozen = {n: p.detach() for n, p in model.named_parameters() if not p.requires_grad}
        return cls(model, loss, training, frozen, frozenset(unused))

    def run(self, weights: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Weights:
        """Return the weights after the last step.

        Args:
            weights: the trained parameters by name, as the client received them.
            x: the client's inputs (N, …).
            y: their soft labels (N, C).
        """
        now, state = dict(weights), OptimiserState()
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        for batch in self.training.batches(len(x), x.device):
            # Indexing keeps batches differentiable; one full batch needs none.
            whole = len(batch) == len(x) and self.training.seed is None
            some, labels = (x, y) if whole else (x[batch], y[batch])
            slopes, buffers = grad(self._loss, has_aux=True)(now, buffers, some, labels)
            trained = {n: g for n, g in slopes.items() if n not in self.unused}
            state, moved = advance(self.training, state, now, trained)
            now |= moved
        return now

    def _loss(
        self, weights: Weights, buffers: Weights, x: Tensor, y: Tensor
    ) -> tuple[Tensor, Weights]:
        # BatchNorm writes its statistics in place: into copies, which are the next step's.
        own = {name: buffer.clone() for name, buffer in buffers.items()}
        logits = logits_of(functional_call(self.model, {**self.frozen, **weights, **own}, (x,)))
        if logits is None or logits.ndim != 2:
            came = "no tensor" if logits is None else f"a tensor of shape {tuple(logits.shape)}"
            raise ModelError(f"expected a model whose output is logits (B, C), got {came}")
        return self.loss(logits, y), own


def advance(
    training: LocalTraining,
    state: OptimiserState,
    weights: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
) -> tuple[OptimiserState, Weights]:
    """Return the optimiser's memory and the weights after one step along the gradients."""
    if training.optimiser == "sgd":
        return _sgd(training, state, weights, gradients)
    return _adam(training, state, weights, gradients)


def _sgd(
    training: LocalTraining, state: OptimiserState,
    weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor],
) -> tuple[OptimiserState, Weights]:  # fmt: skip
    lr, momentum, decay = _known(training)
    first: Weights = {}
    moved: Weights = {}
    for name, g in gradients.items():
        if decay:
            g = g + decay * weights[name]
        if momentum:
            before = state.first[name] if state.first is not None else None
            # The first step has no momentum yet, and is not dampened.
            buffer = g if before is None else momentum * before + (1 - training.dampening) * g
            first[name] = buffer
            g = g + momentum * buffer if training.nesterov else buffer
        moved[name] = weights[name] - lr * g
    return OptimiserState(state.taken + 1, first or None), moved


def _adam(
    training: LocalTraining, state: OptimiserState,
    weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor],
) -> tuple[OptimiserState, Weights]:  # fmt: skip
    lr, _, decay = _known(training)
    taken, (b1, b2) = state.taken + 1, training.betas
    first: Weights = {}
    second: Weights = {}
    moved: Weights = {}
    for name, g in gradients.items():
        start = weights[name]
        if decay and training.optimiser == "adamw":
            start = start * (1 - lr * decay)
        elif decay:
            g = g + decay * start
        m = state.first[name] if state.first is not None else torch.zeros_like(g)
        v = state.second[name] if state.second is not None else torch.zeros_like(g)
        first[name] = m + (g - m) * (1 - b1)
        second[name] = b2 * v + (1 - b2) * g * g
        # The root has no slope at zero, where the step is zero as well.
        positive = second[name] > 0
        root = torch.where(positive, second[name], 1.0).sqrt() / (1 - b2**taken) ** 0.5
        size = torch.where(positive, root, 0.0) + training.eps
        moved[name] = start - lr / (1 - b1**taken) * first[name] / size
    return replace(state, taken=taken, first=first, second=second), moved


def _known(training: LocalTraining) -> tuple[float, float, float]:
    """Return learning rate, momentum and weight decay as numbers."""
    found = training.lr, training.momentum, training.weight_decay
    lr, momentum, decay = (float(v) if isinstance(v, int | float) else None for v in found)
    if lr is None or momentum is None or decay is None:
        raise OptionError("a client that runs needs its lr, momentum and weight_decay")
    return lr, momentum, decay
