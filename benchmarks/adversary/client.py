"""A client: a model, its inputs, and the gradients and updates it would send."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from benchmarks.adversary.losses import CROSS_ENTROPY, Loss
from softleak import GradientShare

OptimiserOf = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]
State = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Sample:
    """Inputs (B, *shape) and their labels (B, C) in float64, with logits (B, C) as computed."""

    x: Tensor
    y: Tensor
    z: Tensor

    @property
    def labels(self) -> tuple[Tensor, ...]:
        return tuple(self.y)


@dataclass(frozen=True, eq=False)
class Client:
    """Runs a model on samples. Parameters, buffers and modes are left as they were."""

    model: nn.Module
    dtype: torch.dtype
    seed: int  # of dropout and of other randomness of the model

    def logits(self, x: Tensor) -> Tensor:
        """(B, C) in float64."""
        with torch.no_grad(), self._fresh():
            return self._run(x).double()

    def gradient(self, sample: Sample, loss: Loss = CROSS_ENTROPY, decay: float = 0.0) -> State:
        """The gradients of the mean loss, by parameter name; ``decay`` is that of the loss."""
        named = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        with self._fresh():
            z = self._run(sample.x)
            total = loss.function(z, sample.y.to(self.dtype))
            if decay:
                total = total + decay / 2 * sum(p.square().sum() for p in named.values())
            found = torch.autograd.grad(total, list(named.values()), allow_unused=True)
        return {n: g for n, g in zip(named, found, strict=True) if g is not None}

    def share(
        self, sample: Sample, loss: Loss = CROSS_ENTROPY, decay: float = 0.0
    ) -> GradientShare:
        return GradientShare(self.gradient(sample, loss, decay), tuple(sample.x.shape[1:]))

    def update(
        self, sample: Sample, optimiser: OptimiserOf, steps: int = 1, before: Sample | None = None
    ) -> tuple[State, State]:
        """The model's state before and after steps on a sample.

        ``before`` is a sample whose step an optimiser remembers, as its momentum; the weights are
        then set back, as if the server had sent new ones.
        """
        held = self._state()
        chosen = optimiser([p for p in self.model.parameters() if p.requires_grad])
        try:
            if before is not None:
                self._step(before, chosen)
                self.model.load_state_dict(held)
            for _ in range(steps):
                self._step(sample, chosen)
            return held, self._state()
        finally:
            self.model.load_state_dict(held)
            chosen.zero_grad()

    def _step(self, sample: Sample, optimiser: torch.optim.Optimizer) -> None:
        found = self.gradient(sample)
        for name, parameter in self.model.named_parameters():
            parameter.grad = found.get(name)
        optimiser.step()

    def _state(self) -> State:
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    def _run(self, x: Tensor) -> Tensor:
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        z: Tensor = functional_call(self.model, buffers, (x.to(self.dtype),))
        return z

    @contextmanager
    def _fresh(self) -> Iterator[None]:
        """Seeded randomness, and no graph left over from another run (LeViT keeps one)."""
        mode = self.model.training
        self.model.train(not mode).train(mode)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            yield
        self.model.train(not mode).train(mode)
