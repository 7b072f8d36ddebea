"""A client that trains with torch's own optimisers, from the weights it was sent."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from benchmarks.adversary.labels import mixed, one_hot, smoothed
from benchmarks.adversary.stranger import Stranger, number_of
from benchmarks.adversary.training import pool

Optimiser = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
State = dict[str, Tensor]
LABEL_KINDS = (one_hot, smoothed, mixed)  # the labels of single samples, in turn


@dataclass(frozen=True, eq=False)
class Data:
    """Some samples.

    Attributes:
        x: the inputs (B, *shape).
        y: their labels (B, C) in float64.
    """

    x: Tensor
    y: Tensor


@dataclass(frozen=True, eq=False)
class Client:
    """A client that holds data and trains a network.

    Attributes:
        network: the network that the client is sent.
    """

    network: Stranger

    @cached_property
    def model(self) -> nn.Module:
        """The model with the weights before the step, in eval mode."""
        return self.network.make().eval()

    @cached_property
    def before(self) -> State:
        """The weights and buffers before the step."""
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    @cached_property
    def _pool(self) -> Tensor:
        """The inputs that samples are drawn from."""
        return pool(self.network.shape, self._classes, number_of(self.network.name))

    @cached_property
    def _classes(self) -> int:
        """The number of classes."""
        with torch.no_grad():
            return int(self.model(torch.zeros(2, *self.network.shape)).shape[-1])

    def draw(self, size: int, seed: int) -> Data:
        """Return some samples. A single one may have a soft label; those of a batch are one-hot."""
        source = torch.Generator().manual_seed(number_of(self.network.name, size, seed))
        rows = torch.randint(len(self._pool), (size,), generator=source)
        kind = LABEL_KINDS[seed % len(LABEL_KINDS)] if size == 1 else one_hot
        blank = torch.zeros(self._classes, dtype=torch.double)
        return Data(self._pool[rows], torch.stack([kind(blank, source) for _ in range(size)]))

    def gradient(self, data: Data) -> State:
        """Return the gradient of the mean loss by parameter name."""
        model = copy.deepcopy(self.model)
        _backward(model, data)
        return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}

    def after(
        self,
        optimiser: Optimiser,
        steps: Sequence[Data],
        *,
        earlier: Data | None = None,
        clip: float | None = None,
    ) -> State:
        """Return the weights after some steps.

        Args:
            optimiser: the function that makes the optimiser.
            steps: the data of each step.
            earlier: the data of a former step, which momentum remembers. The server has sent its
                own weights again since.
            clip: the largest norm of a gradient; None clips nothing.
        """
        model = copy.deepcopy(self.model)
        chosen = optimiser(model.parameters())
        for data in (*([earlier] if earlier else []), *steps):
            if data is steps[0]:
                model.load_state_dict(self.before)
            chosen.zero_grad()
            _backward(model, data)
            if clip is not None:
                clip_grad_norm_(model.parameters(), clip)
            chosen.step()
        return model.state_dict()


def _backward(model: nn.Module, data: Data) -> None:
    """Compute the gradient of the mean loss."""
    loss = functional.cross_entropy(model(data.x), data.y.to(data.x.dtype))
    loss.backward()  # type: ignore[no-untyped-call]
